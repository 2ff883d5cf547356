"""The API before a real PostgreSQL that has fallen silent: its connections stand, and nothing comes."""

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from runfold.api import create_app
from runfold.api.patience import READ_SECONDS
from runfold.local import Postgres
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryTail
from runfold_projector.store import Reader, migrate
from tests.cases.harness_processes import slowness

PROBE_SECONDS = 1.0  # that Kubernetes gives a probe unless told otherwise


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One of our own: the session's must not be stopped."""
    with Postgres(tmp_path_factory.mktemp("silent")) as own:
        migrate(own.dsn)
        yield own


@pytest.fixture
async def client(server: Postgres) -> AsyncIterator[httpx.AsyncClient]:
    broker, reads = MemoryBroker(1), Reader(server.dsn, "silence")
    app = create_app(MemoryCommands(broker), reads, MemoryTail(broker))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=30) as client:
        assert (await client.get("/readyz")).status_code == 200
        yield client
    await reads.close()


@contextmanager
def silent(server: Postgres) -> Iterator[None]:
    """The server and the processes of its connections are stopped, as on a machine that is out of memory or is being moved."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    pids = [server.pid, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def timed(client: httpx.AsyncClient, path: str) -> tuple[int, float, str]:
    began = time.monotonic()
    answer = await client.get(path)
    return answer.status_code, time.monotonic() - began, answer.text


async def test_a_probe_hears_of_a_silent_database_before_its_patience_ends(server: Postgres, client: httpx.AsyncClient) -> None:
    with silent(server):
        for _ in range(3):
            status, seconds, said = await timed(client, "/readyz")
            assert (status, '"projection":"no answer"' in said, '"log":"ok"' in said) == (503, True, True)
            assert seconds < PROBE_SECONDS * slowness()
            status, seconds, _ = await timed(client, "/healthz")
            assert (status, seconds < 0.2 * slowness()) == (200, True)
    assert (await client.get("/readyz")).status_code == 200


async def test_a_read_of_a_silent_database_is_503_in_time(server: Postgres, client: httpx.AsyncClient) -> None:
    with silent(server):
        status, seconds, said = await timed(client, "/api/runs")
        assert (status, "projection_unavailable" in said) == (503, True)
        assert seconds < READ_SECONDS + slowness()
    assert (await client.get("/api/runs")).status_code == 200
