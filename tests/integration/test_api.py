"""The API on a real Kafka and a real PostgreSQL, beside a real projector process that tests stop when they like."""

import asyncio
import math
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.api import create_app
from runfold.config import Settings
from runfold.core.events import LeaseAcquired
from runfold.local import Postgres
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands, KafkaTail
from runfold_projector.store import Reader, migrate
from tests.conftest import TopicFactory

PROJECTOR_SECONDS = 20.0


@dataclass
class Deployment:
    """A topic, a database and a projector; APIs are made as a test needs them."""

    settings: Settings
    projector: asyncio.subprocess.Process

    @asynccontextmanager
    async def api(self, dsn: str | None = None, stalled_seconds: float = 300) -> AsyncIterator[httpx.AsyncClient]:
        codec = Codec()
        commands, tail = KafkaCommands(self.settings, codec), await KafkaTail.open(self.settings, codec)
        reads = Reader(self.settings.dsn if dsn is None else dsn, self.settings.topic)
        app = create_app(commands, reads, tail, stalled_seconds=stalled_seconds)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=30) as client:
                yield client
        finally:
            await asyncio.gather(commands.close(), tail.close(), reads.close())

    @contextmanager
    def projector_stopped(self) -> Iterator[None]:
        self.projector.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.projector.send_signal(signal.SIGCONT)

    async def projected(self, run_id: str) -> dict[str, Any]:
        """The run's row, once it is there."""
        reads = Reader(self.settings.dsn, self.settings.topic, connections=1)
        try:
            async with asyncio.timeout(PROJECTOR_SECONDS):
                while True:
                    if (row := await reads.run(run_id)) is not None:
                        return row
                    await asyncio.sleep(0.02)
        finally:
            await reads.close()

    def produced(self) -> int:
        """Records on the topic, as offsets count them."""
        consumer = Consumer({"bootstrap.servers": self.settings.bootstrap, "group.id": "count"})
        try:
            ends = [consumer.get_watermark_offsets(TopicPartition(self.settings.topic, n), 10)[1] for n in range(4)]
        finally:
            consumer.close()
        return sum(ends)


@pytest.fixture
async def deployment(bootstrap: str, dsn: str, topic: TopicFactory) -> AsyncIterator[Deployment]:
    async with _deployed(bootstrap, dsn, topic) as running:
        yield running


@asynccontextmanager
async def _deployed(bootstrap: str, dsn: str, topic: TopicFactory) -> AsyncIterator[Deployment]:
    settings = Settings(bootstrap=bootstrap, dsn=dsn, topic=topic(4))
    migrate(dsn)
    command = ["-m", "runfold.cli", "projector", "--bootstrap", bootstrap, "--dsn", dsn, "--topic", settings.topic]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        yield Deployment(settings, process)
    finally:
        process.kill()
        await process.wait()


async def test_reads_see_what_was_written_while_the_projector_stands_still(deployment: Deployment) -> None:
    """J06.1, J06.2"""
    async with deployment.api() as client:
        first = await _submit(client)
        await deployment.projected(first)  # the projector runs
        with deployment.projector_stopped():
            run_id = await _submit(client, tenant="acme", costCeilingUsd=0.5, metadata={"ticket": "17"})
            run = await client.get(f"/api/runs/{run_id}")
            assert (run.status_code, run.json()["status"], run.json()["tenant"]) == (200, "QUEUED", "acme")
            timeline = await client.get(f"/api/runs/{run_id}/timeline")
            assert (timeline.status_code, timeline.json()) == (200, [])
            listed = await client.get("/api/runs")
            assert listed.status_code == 200
            assert (await client.post(f"/api/runs/{run_id}/cancel")).status_code == 202
            unknown = str(uuid.uuid4())
            for method, path in (("GET", ""), ("GET", "/timeline"), ("POST", "/cancel")):
                assert (await client.request(method, f"/api/runs/{unknown}{path}")).status_code == 404
        await deployment.projected(run_id)
        assert (await client.get(f"/api/runs/{run_id}")).json() == run.json(), "SQL and log tell the same"
        assert [row["id"] for row in (await client.get("/api/runs")).json()["runs"]] == [run_id, first]


async def test_the_lag_is_exported_while_the_projector_stands_still(deployment: Deployment) -> None:
    """J06.3; and R04.1 without a worker: a run that nobody drives stands still, one that is not projected does not."""
    async with deployment.api(stalled_seconds=0.5) as client:

        async def lag() -> float:
            return await _metric(client, "runfold_projection_lag_seconds")

        async def stalled() -> float:
            return await _metric(client, "runfold_runs_stalled")

        await _until(lag, lambda seconds: seconds == 0)  # nan until somebody has answered in time
        await deployment.projected(await _submit(client))
        await _until(lag, lambda seconds: seconds == 0)
        await _until(stalled, lambda runs: runs == 1)
        with deployment.projector_stopped():
            await _submit(client)
            await _until(lag, lambda seconds: seconds > 1)
            await _until(stalled, lambda runs: runs == 1)
        await _until(lag, lambda seconds: seconds == 0)
        await _until(stalled, lambda runs: runs == 2)


async def test_a_run_behind_a_transaction_that_nobody_ends_is_not_unknown(deployment: Deployment) -> None:
    """A worker died in mid-transaction and none has taken over: what is accepted meanwhile is in the log, behind it."""
    async with deployment.api() as client:
        with deployment.projector_stopped():
            hanging = [_hang(deployment.settings, partition) for partition in range(4)]
            run_id = await _submit(client)
            assert (await client.get(f"/api/runs/{run_id}")).json()["status"] == "QUEUED"
            assert (await client.post(f"/api/runs/{run_id}/cancel")).status_code == 202
            for producer in hanging:
                producer.abort_transaction(10)


async def test_the_largest_body_is_a_record_the_log_takes(deployment: Deployment) -> None:
    """U01.1: 0.95 MB, and the limit itself."""
    async with deployment.api() as client:
        for size in (950_000, 1_000_000):
            text = "ü" * ((size - len('{"input":""}')) // 2)
            content = f'{{"input":"{text}"}}'.encode().ljust(size)
            answer = await client.post("/api/runs", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 202, answer.text
            run_id = answer.json()["id"]
            assert (await client.get(f"/api/runs/{run_id}")).json()["input"] == text
            assert (await deployment.projected(run_id))["input"] == text


async def test_one_key_at_two_apis_is_one_run(deployment: Deployment) -> None:
    """K09.2 as the API sees it: whatever the order of their records, one body won and both say the same."""
    async with deployment.api() as one, deployment.api() as other:
        for n in range(5):
            headers = {"Idempotency-Key": f"key-{n}"}
            answers = await asyncio.gather(
                *(api.post("/api/runs", json={"input": text}, headers=headers) for api, text in ((one, "A"), (other, "B")))
            )
            assert sorted(answer.status_code for answer in answers) == [202, 422]
            winner = "A" if answers[0].status_code == 202 else "B"
            run_id = next(answer.json()["id"] for answer in answers if answer.status_code == 202)
            assert (await one.get(f"/api/runs/{run_id}")).json()["input"] == winner
            assert (await deployment.projected(run_id))["input"] == winner
            again = await other.post("/api/runs", json={"input": winner}, headers=headers)
            assert (again.status_code, again.json()["id"], again.headers["idempotency-replayed"]) == (202, run_id, "true")


async def test_without_postgres_submissions_go_on_and_reads_say_so(deployment: Deployment) -> None:
    """J04.2"""
    async with deployment.api(dsn="postgresql://127.0.0.1:1/none") as client:
        run_id = await _submit(client)
        answer = await client.get(f"/api/runs/{run_id}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "projection_unavailable")
        assert (await client.get("/healthz")).status_code == 200
        checks = (await client.get("/readyz")).json()["error"]["checks"]
        assert checks == {"projection": "no answer", "freshness": "no answer", "log": "ok"}, "it is still being tried"
    async with deployment.api() as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get(f"/api/runs/{run_id}")).status_code == 200


async def test_one_api_outlives_its_postgres(bootstrap: str, tmp_path: Path, topic: TopicFactory) -> None:
    """J04 V4: killed and started again, while requests come."""
    with Postgres(tmp_path) as postgres:
        async with _deployed(bootstrap, postgres.dsn, topic) as deployment, deployment.api() as client:
            first = await _submit(client)
            await deployment.projected(first)
            await asyncio.to_thread(postgres.kill)
            paths = (f"/api/runs/{first}", f"/api/runs/{first}/timeline", "/api/runs", "/readyz")
            meanwhile = []
            for _ in range(2):
                answers = await asyncio.gather(*map(client.get, paths), client.post("/api/runs", json={"input": "go"}))
                assert [answer.status_code for answer in answers[:-1]] == [503] * len(paths)
                assert answers[-1].status_code in (202, 503)
                meanwhile += [answers[-1].json()["id"]] if answers[-1].status_code == 202 else []
            assert math.isnan(await _metric(client, "runfold_projection_lag_seconds"))
            await asyncio.to_thread(postgres.start)
            async with asyncio.timeout(PROJECTOR_SECONDS):
                while (answer := await client.get(f"/api/runs/{first}")).status_code == 503:
                    pass
            assert (answer.status_code, answer.json()["id"]) == (200, first)
            for run_id in meanwhile:
                await deployment.projected(run_id)
                assert (await client.get(f"/api/runs/{run_id}")).status_code == 200
            await _until(lambda: _metric(client, "runfold_projection_lag_seconds"), lambda lag: lag == 0)


async def test_unknown_and_malformed_ids_produce_nothing(deployment: Deployment) -> None:
    """R06.1, U05.1, U05.2"""
    async with deployment.api() as client:
        run_id = await _submit(client)
        await deployment.projected(run_id)
        before = deployment.produced()
        others = [run_id.upper(), f"{{{run_id}}}", run_id.replace("-", ""), f"urn:uuid:{run_id}"]
        for path in ("", "/timeline", "/cancel"):
            method = "POST" if path == "/cancel" else "GET"
            assert (await client.request(method, f"/api/runs/{uuid.uuid4()}{path}")).status_code == 404
            for spelling in (*others, "not-a-uuid", "%00", "x" * 300):
                answer = await client.request(method, f"/api/runs/{spelling}{path}")
                assert (answer.status_code, answer.json()["error"]["field"]) == (422, "id")
        assert deployment.produced() == before


async def test_cancel_tells_how_an_ended_run_ended(deployment: Deployment) -> None:
    """B02.2, B02.3"""
    async with deployment.api() as client:
        run_id = await _submit(client)
        await deployment.projected(run_id)
        for status, expected in (("SUCCEEDED", 409), ("FAILED", 409), ("TIMED_OUT", 409), ("CANCELLED", 200)):
            async with await psycopg.AsyncConnection.connect(deployment.settings.dsn, autocommit=True) as connection:
                await connection.execute("update run set status = %s, finished_at = now()", [status])
            before = deployment.produced()
            answer = await client.post(f"/api/runs/{run_id}/cancel")
            assert answer.status_code == expected
            assert (answer.json() if expected == 200 else answer.json()["error"])["status"] == status
            assert deployment.produced() == before


async def test_pages_and_filters_in_sql(deployment: Deployment) -> None:
    """U06"""
    async with deployment.api() as client:
        ids = [await _submit(client, agent="a" if n % 2 else "b", tenant=["x%", "x_", "x\\", "xy"][n % 4]) for n in range(8)]
        for run_id in ids:
            await deployment.projected(run_id)
        seen, cursor = [], None
        while True:
            page = (await client.get("/api/runs", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))).json()
            seen += [run["id"] for run in page["runs"]]
            if (cursor := page["nextCursor"]) is None:
                break
        assert sorted(seen) == sorted(ids)
        for tenant in ("x%", "x_", "x\\", "xy"):
            found = (await client.get("/api/runs", params={"tenant": tenant, "status": "QUEUED"})).json()["runs"]
            assert len(found) == 2, "wildcards are letters"
        assert (await client.get("/api/runs", params={"agent": "' or '1'='1"})).json()["runs"] == []
        assert len((await client.get("/api/runs", params={"agent": "a", "tenant": "xy"})).json()["runs"]) == 2
        async with asyncio.timeout(1):
            assert (await client.get("/api/runs", params={"orderBy": "(select pg_sleep(5))"})).status_code == 422


async def _metric(client: httpx.AsyncClient, name: str) -> float:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return next(float(line.removeprefix(name)) for line in answer.text.splitlines() if line.startswith(f"{name} "))


async def _until(ask: Callable[[], Awaitable[float]], satisfied: Callable[[float], bool]) -> None:
    async with asyncio.timeout(PROJECTOR_SECONDS):
        while True:
            if satisfied(await ask()):
                return
            await asyncio.sleep(0.02)


async def _submit(client: httpx.AsyncClient, **body: Any) -> str:
    answer = await client.post("/api/runs", json={"input": "go", **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _hang(settings: Settings, partition: int) -> Producer:
    """Leave a transaction open on a partition."""
    producer = Producer({"bootstrap.servers": settings.bootstrap, "transactional.id": f"{settings.topic}.hang.{partition}"})
    producer.init_transactions(10)
    producer.begin_transaction()
    lease = LeaseAcquired(partition=partition, worker="dead", build="0")
    producer.produce(settings.topic, Codec().encode(lease), f"lease/{partition}".encode(), partition)
    producer.flush(10)
    return producer
