"""J04.3: while the database is away, workers carry runs, and the tables catch up by themselves."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest

from runfold.core.events import Status
from tests.cases.harness import POLL_SECONDS, Scene
from tests.cases.harness_processes import slowness

pytestmark = pytest.mark.asyncio(loop_scope="package")

CAUGHT_UP_SECONDS = 15.0


@contextmanager
def away(postgres: str, database: str) -> Iterator[None]:
    """Nobody is connected to the database, and nobody can connect."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"alter database {database} allow_connections false")
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
        try:
            yield
        finally:
            admin.execute(f"alter database {database} allow_connections true")


async def test_workers_go_on_without_a_database_and_the_tables_catch_up(stage: Scene, postgres: str) -> None:
    """J04.1, J04.3"""
    with away(postgres, stage.settings.topic):
        run_ids = [await stage.post(f"K09 without tables {uuid4()}") for _ in range(5)]
        await stage.ended(*run_ids)
        assert [stage.run(one).status for one in run_ids] == [Status.SUCCEEDED] * len(run_ids), "J04.3"
    async with asyncio.timeout(CAUGHT_UP_SECONDS * slowness()):  # J04.1
        while not set(run_ids) <= set(await stage.rows()):  # noqa: ASYNC110  # a table tells nobody
            await asyncio.sleep(POLL_SECONDS)
    await stage.check(*run_ids)  # no row is lost or doubled
