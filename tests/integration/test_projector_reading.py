"""The read model on a real PostgreSQL: what the API gets, and what it gets when the database is away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runfold.core.errors import ReadUnavailable
from runfold.core.events import Limits
from runfold.local import Postgres
from runfold.ports import ReadModel
from runfold_projector.store import Reader
from tests.integration.projecting import TOPIC, Topic, project_all
from tests.logs import NOON, RunScript, ScriptedLog, run_id

AT_NOON = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOON)


@asynccontextmanager
async def reading(dsn: str, patience: float = 3) -> AsyncIterator[ReadModel]:
    reader = Reader(dsn, TOPIC, timeout=patience)
    try:
        yield reader
    finally:
        await reader.close()


def project(dsn: str, *logs: ScriptedLog) -> None:
    project_all(Topic(*logs), dsn)


def leased() -> ScriptedLog:
    log = ScriptedLog()
    log.lease("worker-A")
    return log


async def test_a_run_has_the_types_of_its_columns(dsn: str) -> None:
    log = leased()
    limits = Limits(token_budget=50_000, cost_ceiling=Decimal("0.5"), timeout_ms=300_000)
    run = log.request("why?", metadata={"team": "a"}, limits=limits).to_the_end()
    project(dsn, log)
    async with reading(dsn) as reader:
        row = await reader.run(run.id)
        assert row is not None
        assert (row["id"], row["status"], row["reason"]) == (run.id, "SUCCEEDED", "FINAL_ANSWER")
        assert (row["metadata"], row["token_budget"], row["cost_ceiling_usd"]) == ({"team": "a"}, 50_000, Decimal("0.5"))
        assert (row["requested_at"], row["cost_usd"]) == (AT_NOON + timedelta(milliseconds=1), Decimal("0.002"))
        assert row["deadline"] - row["requested_at"] == timedelta(minutes=5)
        assert await reader.run(run_id(404)) is None


async def test_steps_come_in_seq_order_with_the_id_of_their_run_as_text(dsn: str) -> None:
    log = leased()
    run = log.request().start().call_model().ask("a", "b", "c")
    run.call_tool("c").call_tool("b").tool_ends("c").call_tool("a")
    project(dsn, log)
    async with reading(dsn) as reader:
        rows = await reader.steps(run.id)
        assert [(row["run_id"], row["seq"], row["tool_use_id"], row["status"]) for row in rows] == [
            (run.id, 1, None, "DONE"),
            (run.id, 2, "a", "STARTED"),
            (run.id, 3, "b", "STARTED"),
            (run.id, 4, "c", "DONE"),
        ]
        assert await reader.steps(run_id(404)) == []


async def test_pages_are_newest_first_and_complete_though_times_are_equal(dsn: str) -> None:
    log = leased()
    for number in range(25):
        log.request()
        if number % 3:
            log.pass_time(-1)  # the same millisecond as the next
    project(dsn, log)
    async with reading(dsn) as reader:
        seen, before = list[tuple[datetime, str]](), None
        while page := await reader.runs(limit=4, before=before):
            seen += [(row["requested_at"], row["id"]) for row in page]
            before = seen[-1]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 25


async def test_the_list_is_filtered_by_status_agent_and_tenant_together(dsn: str) -> None:
    log = leased()
    log.request(agent="a", tenant="acme").start()
    log.request(agent="a", tenant="acme")
    log.request(agent="a")
    log.request(agent="b", tenant="acme").start()
    long = "x" * 900
    log.request(agent=long)
    project(dsn, log)

    async def ids(**filters: Any) -> list[str]:
        async with reading(dsn) as reader:
            return [row["id"] for row in await reader.runs(limit=10, **filters)]

    assert await ids(agent="a") == [run_id(3), run_id(2), run_id(1)]
    assert await ids(agent="a", tenant="acme") == [run_id(2), run_id(1)]
    assert await ids(agent="a", tenant="acme", status="RUNNING") == [run_id(1)]
    assert await ids(agent=long) == [run_id(5)]
    assert await ids(agent="a\0") == []


async def test_j06_applied_tells_how_far_the_rows_are(dsn: str) -> None:
    """J06, the SQL side: what is not in the rows stands in the log from `applied` on."""
    log = leased()
    topic = Topic(log, shown=False)
    run = log.request()
    topic.publish(0, 1)
    await asyncio.to_thread(project_all, topic, dsn)
    async with reading(dsn) as reader:
        assert (await reader.applied(0), await reader.run(run.id)) == (1, None)
        assert await reader.applied(7) == 0
        topic.publish()
        await asyncio.to_thread(project_all, topic, dsn)
        row = await reader.run(run.id)
        assert (await reader.applied(0), row and row["status"]) == (2, "QUEUED")


async def test_j06_reached_tells_it_of_all_partitions(dsn: str) -> None:
    project(dsn, leased())
    async with reading(dsn) as reader:
        reached = await reader.reached()
        assert reached[0] == 1
        assert reached == {partition: await reader.applied(partition) for partition in reached}
    async with asyncio.timeout(5):
        other = Reader(dsn, "another topic")
        assert await other.reached() == {}
        await other.close()


async def test_r04_runs_that_could_move_and_did_not_are_stalled(dsn: str) -> None:
    """R04.1: final and suspended runs do not stand still, nor do those that wait until they may try again."""
    log = leased()
    log.request()
    log.request().start().call_model()
    log.request().to_the_end()
    RunScript(log, log.request().id).start().call_model().ask("a").suspend(tool_use_id="a")
    log.request().start().call_model().model_fails(retry_in=60_000)
    project(dsn, log)
    last, now = log.records[-1].timestamp / 1000, time.time()
    async with reading(dsn) as reader:
        stalled = [await reader.stalled(now - moment) for moment in (last - 30, last + 30, last + 90)]
    assert stalled == [0, 2, 3], "moved since 30 s before; since 30 s after; since the pause ended"


async def test_tables_that_do_not_exist_yet_are_unavailable_not_empty(dsn: str) -> None:
    async with reading(dsn) as reader:
        with pytest.raises(ReadUnavailable, match="UndefinedTable"):
            await reader.run(run_id(1))


async def test_a_reader_cannot_write(dsn: str) -> None:
    project(dsn, leased())
    reader = Reader(dsn, TOPIC)
    with pytest.raises(ReadUnavailable, match="ReadOnlySqlTransaction"):
        await reader._rows("delete from run returning id", {})
    await reader.close()


async def test_j04_v4_connections_that_were_ended_are_replaced(dsn: str) -> None:
    """J04.2"""
    log = leased()
    run = log.request()
    project(dsn, log)
    async with reading(dsn) as reader:
        await asyncio.gather(*(reader.run(run.id) for _ in range(8)))
        with psycopg.connect(dsn, autocommit=True) as admin:
            mine = "application_name = 'runfold-reader' and datname = current_database()"
            admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {mine}".encode())
        assert all(await asyncio.gather(*(reader.run(run.id) for _ in range(8))))


async def test_j04_v4_a_database_that_is_away_costs_seconds_and_comes_back_by_itself(tmp_path: Path) -> None:
    """J04.2, with a server of the test's own."""
    server = Postgres(tmp_path)
    server.start()
    try:
        project(server.dsn, leased())
        async with reading(server.dsn, patience=1) as reader:
            assert await reader.applied(0) == 1
            await asyncio.to_thread(server.stop)
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(ReadUnavailable, match="the projection cannot be read"):
                    await reader.applied(0)
                assert time.monotonic() - began < 2
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(5):
                while not await answers(reader):
                    pass
    finally:
        server.stop()


async def answers(reader: ReadModel) -> bool:
    try:
        return await reader.applied(0) == 1
    except ReadUnavailable:
        return False


async def test_a_run_that_waits_says_for_what(dsn: str) -> None:
    log = leased()
    waiting = log.request().start().call_model().model_fails(retry_in=60_000)
    retry_at = log.records[-1].timestamp + 60_000
    stuck = RunScript(log, log.request().id).start().call_model().ask("a")
    stuck.suspend(tool_use_id="a")
    project(dsn, log)
    async with reading(dsn) as reader:
        rows = [await reader.run(waiting.id), await reader.run(stuck.id)]
        assert rows[0] is not None
        assert rows[1] is not None
        assert rows[0]["retry_at"] == AT_NOON + timedelta(milliseconds=retry_at - NOON)
        assert (rows[1]["status"], rows[1]["reason"], rows[1]["waiting_tool_use_id"]) == ("SUSPENDED", "BUDGET", "a")
