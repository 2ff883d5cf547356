"""R04: nobody carries a run for a while. It says so, it is not punished for it, and only an owner changes it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry

from runfold.api import create_app
from runfold.core.events import LeaseAcquired, ModelStepCompleted, Status
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands, KafkaTail
from runfold_projector.store import Reader
from tests.cases.harness import PATIENCE, POLL_SECONDS, Scene
from tests.cases.harness_processes import HELD, slowness

pytestmark = pytest.mark.asyncio(loop_scope="package")

FAILOVER, REPEATED = "runfold_failover_seconds", "runfold_model_calls_repeated_total"
PROGRESS_SECONDS = 3  # long enough for a step on a busy machine


class Api:
    """An API of its own, which calls stalled what has made no progress for twice the progress timeout of the runs here."""

    def __init__(self, client: httpx.AsyncClient, registry: CollectorRegistry) -> None:
        self.client, self.registry = client, registry

    async def stalled(self) -> float:
        """The gauge, as scraped."""
        assert (await self.client.get("/metrics")).status_code == 200
        value = self.registry.get_sample_value("runfold_runs_stalled")
        return math.nan if value is None else value

    async def until(self, true: Callable[[float], bool]) -> None:
        deadline = time.monotonic() + PATIENCE * slowness()
        while not true(value := await self.stalled()):
            assert time.monotonic() < deadline, f"{value} runs are stalled"
            await asyncio.sleep(POLL_SECONDS)


async def published(stage: Scene, worker: str, sample: str, value: float) -> None:
    """Wait until a worker's metric is so."""
    deadline = time.monotonic() + PATIENCE * slowness()
    while (found := await stage.processes.metric(worker, sample)) != value:
        assert time.monotonic() < deadline, f"{sample} is {found}, not {value}"
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def api(stage: Scene) -> AsyncIterator[Api]:
    codec, registry = Codec(), CollectorRegistry()
    commands, tail = KafkaCommands(stage.settings, codec), await KafkaTail.open(stage.settings, codec)
    reads = Reader(stage.settings.dsn, stage.settings.topic)
    app = create_app(commands, reads, tail, registry=registry, stalled_seconds=2 * PROGRESS_SECONDS)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://runfold") as client:
            yield Api(client, registry)
    finally:
        await asyncio.gather(commands.close(), tail.close(), reads.close())


async def test_a_run_that_nobody_works_on_stands_still_visibly_and_goes_on_unpunished(pair: Scene) -> None:
    """R04.1 to R04.3"""
    async with api(pair) as here:
        pair.world.hold("effect a")
        run_id = await pair.post(f"R01 outage {uuid4()}", progressTimeoutSeconds=PROGRESS_SECONDS)
        visit = await pair.held("effect a")
        await pair.projected()
        assert await here.stalled() == 0
        pair.processes.kill_both(pair.owner(pair.partition_of(run_id)), visit.pid)
        for other in set(pair.processes.names):
            pair.processes.kill_keeper(other)
        before, row = pair.kinds(run_id), (await pair.rows())[run_id]

        await here.until(lambda stalled: stalled > 0)
        assert not pair.processes.names
        shown = (await here.client.get(f"/api/runs/{run_id}")).json()
        assert shown["status"] == "RUNNING", "R04.1"
        progress = datetime.fromisoformat(shown["lastProgressAt"])
        assert progress == row["last_progress_at"], "R04.1"
        assert datetime.now(UTC) - progress > timedelta(seconds=2 * PROGRESS_SECONDS)
        assert (await here.client.get("/readyz")).status_code == 200, "tables and log are level, it is no fault of theirs"
        assert (pair.kinds(run_id), (await pair.rows())[run_id]) == (before, row), "R04.3"

        await pair.start("worker-A", entry=HELD, max_tool_calls=2)
        await pair.ended(run_id)
        run = pair.run(run_id)
        assert (run.status, run.reason) == (Status.SUCCEEDED, "FINAL_ANSWER"), "R04.2"
        after = pair.records(run_id)[len(before) :]
        epochs = {record.offset for record in pair.records() if isinstance(record.event, LeaseAcquired)}
        assert all(record.event.epoch in epochs for record in after), "R04.3"  # type: ignore[union-attr]
        await here.until(lambda stalled: stalled == 0)
        await pair.check(run_id, interruptions=1)
        assert await pair.processes.metric("worker-A", f'{FAILOVER}_count{{since="last_event"}}') == 1
        assert await pair.processes.metric("worker-A", f'{FAILOVER}_sum{{since="last_event"}}') > 2 * PROGRESS_SECONDS
        assert await pair.processes.metric("worker-A", REPEATED) == 0, "it was in a tool"


async def test_what_a_kill_has_cost_is_published(stage: Scene) -> None:
    """By the next worker process: how long nobody carried the partition, and the model call that is paid twice."""
    stage.world.hold("model 1 answered")
    run_id = await stage.post(f"R01 paid twice {uuid4()}")
    visit = await stage.held("model 1 answered")
    name = stage.owner(stage.partition_of(run_id))
    owned = await stage.processes.metric(name, "runfold_partitions_owned")
    stage.processes.kill_worker(visit.pid)
    await stage.ended(run_id)
    await published(stage, name, f'{FAILOVER}_count{{since="death"}}', owned)
    assert await stage.processes.metric(name, f'{FAILOVER}_sum{{since="death"}}') < 2 * owned * slowness()
    assert await stage.processes.metric(name, "runfold_fold_seconds_count") == owned
    async with asyncio.timeout(20 * slowness()):
        while await stage.processes.readiness(name) != {"status": "ready", "checks": {}}:  # noqa: ASYNC110 - it is asked by HTTP
            await asyncio.sleep(0.1)
    assert await stage.processes.metric(name, REPEATED) == 1
    first = next(record.event for record in stage.records(run_id) if isinstance(record.event, ModelStepCompleted))
    assert await stage.processes.metric(name, f'runfold_tokens_paid_twice_total{{model="{first.model}"}}') == first.usage.total
    await stage.check(run_id, interruptions=1)
