"""K02: a rolling deploy. Workers of this version and of one whose records this one does not know, over one log."""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from runfold.core.events import (
    Event,
    ModelStepCompleted,
    Reason,
    RunFinished,
    RunRequested,
    RunResumeRequested,
    RunSnapshotted,
    Status,
)
from runfold.log.memory import MemoryBroker, MemoryCommands
from runfold.testing import Script
from tests.cases.engine_process import Process
from tests.cases.engine_scene import Scene, recording, stage
from tests.cases.newer_codec import NewerCodec

SCRIPTS = {"K02": Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done"), "": Script().then_text("done")}


class Deploy:
    """Two versions take turns at one partition. One run goes through both; its tool waits at a gate."""

    def __init__(self, scene: Scene, kind: type[Event]) -> None:
        self.scene, self.old, self.new = scene, scene.broker, copy.copy(scene.broker)
        self.new.codec = NewerCodec(kind)
        self.judge = self.new  # it can read all
        self.entered, self.gate = asyncio.Event(), asyncio.Event()
        scene.serve(recording(scene.ledger, "a", self._wait))

    async def _wait(self, context: object) -> str:
        self.entered.set()
        await self.gate.wait()
        return "ok"

    async def worker(self, version: MemoryBroker) -> Process:
        """The next worker, after the death of the one before."""
        for process in tuple(self.scene.processes):
            await self.scene.kill(process)
        self.scene.broker = version
        return self.scene.start(f"worker-{uuid4().hex[:4]}")

    async def others(self) -> None:
        """Some runs more, which end, and the position is moved beyond them."""
        for _ in range(5):
            assert (await self.scene.play(f"another {uuid4()}")).status is Status.SUCCEEDED
        await self.position_to(self.old.partitions[0].end - 1)

    async def position_to(self, offset: int) -> None:
        partition = self.old.partitions[0]
        async with asyncio.timeout(20):
            while partition.position.next < offset:
                await partition.changed.wait()

    def offsets(self, run_id: str) -> list[int]:
        """Of all records with the run's key, whoever can read them."""
        return [stored.raw.offset for stored in self.old.partitions[0].visible(0) if stored.raw.key == run_id.encode()]


@asynccontextmanager
async def deploy(kind: type[Event]) -> AsyncIterator[Deploy]:
    async with stage(SCRIPTS) as scene:
        here = Deploy(scene, kind)
        yield here
        scene.broker = here.judge


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are carried forward at once, and nothing but open runs holds the low watermark back."""
    monkeypatch.setattr("runfold.core.shard.OVERLAP", 0)
    for name, value in {"BEHIND": 15, "FACTOR": 0, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(f"runfold.worker.carrier.{name}", value)


async def in_mid_run(here: Deploy) -> tuple[str, int]:
    """A worker of the next version dies in a tool; the run, and where a fold of it must begin."""
    await here.worker(here.new)
    run_id = await here.scene.submit(f"K02 {uuid4()}")
    await here.entered.wait()
    return run_id, here.offsets(run_id)[0]


async def at_its_beginning(here: Deploy) -> tuple[str, int]:
    """The same, after it has carried the run forward."""
    run_id, _ = await in_mid_run(here)
    while not here.scene.log(run_id, RunSnapshotted):
        await here.others()
    await here.position_to(here.old.partitions[0].end - 1)
    await here.others()
    assert here.old.partitions[0].position.low > here.offsets(run_id)[0], "what came before is not read any more"
    return run_id, here.offsets(run_id)[-1]


async def at_its_request(here: Deploy) -> tuple[str, int]:
    """A client of the next version, before any worker of it."""
    run_id = str(uuid4())
    await MemoryCommands(here.new).send(RunRequested(run_id=run_id, agent="default", input=f"K02 {uuid4()}"))
    return run_id, here.offsets(run_id)[0]


@pytest.mark.parametrize(
    ("where", "kind"),
    [(in_mid_run, ModelStepCompleted), (at_its_beginning, RunSnapshotted), (at_its_request, RunRequested)],
    ids=lambda each: each.__name__,
)
async def test_an_older_worker_stops_at_a_newer_record_and_a_newer_one_goes_on(
    where: Callable[[Deploy], Awaitable[tuple[str, int]]], kind: type[Event]
) -> None:
    """K02.1, K02.2"""
    async with deploy(kind) as here:
        run_id, begin = await where(here)
        before = here.offsets(run_id)
        older = await here.worker(here.old)
        await here.others()  # K02.1: they go on
        assert older.worker.partitions[0].gaps.parked == {run_id}, "K02.1: visibly"
        assert here.offsets(run_id) == before, "K02.1: not with half the state"
        assert here.old.dead_letters == [], "K02.1: nor as poison"
        assert here.old.partitions[0].position.low <= begin, "the next one must find it"
        await here.worker(here.old)
        await here.others()
        assert here.old.partitions[0].position.low <= begin, "also after an owner that had to find it itself"
        await here.worker(here.new)
        here.gate.set()
        assert (await here.scene.settled(run_id)).status is Status.SUCCEEDED, "K02.2"
        assert len(here.scene.log(run_id, ModelStepCompleted)) == 2
        await here.position_to(here.old.partitions[0].end - 1)
        await here.others()
        assert here.old.partitions[0].position.low > begin, "and nothing is held back any more"


async def test_a_cancel_waits_for_the_worker_that_knows_what_it_ends() -> None:
    """The end of a run says what it used."""
    async with deploy(ModelStepCompleted) as here:
        run_id, _ = await in_mid_run(here)
        await here.worker(here.old)
        await here.scene.cancel(run_id)
        await here.others()
        assert not here.scene.log(run_id, RunFinished)
        await here.worker(here.new)
        run = await here.scene.settled(run_id)
        assert (run.status, run.usage.total > 0) == (Status.CANCELLED, True)


async def test_a_run_that_misses_a_command_alone_can_be_cancelled_by_any_worker() -> None:
    """It may be one that no version will ever know."""
    async with deploy(RunResumeRequested) as here:
        worker = await here.worker(here.old)
        run_id = await here.scene.submit(f"K02 {uuid4()}")
        await here.entered.wait()
        await MemoryCommands(here.new).send(RunResumeRequested(run_id=run_id, command_id="newer", requested_by="test"))
        here.scene.interruptions += 1  # what was under way is aborted
        here.gate.set()
        await here.others()
        assert worker.worker.partitions[0].gaps.parked == {run_id}
        await here.scene.cancel(run_id)
        run = await here.scene.settled(run_id)
        assert (run.status, run.reason) == (Status.CANCELLED, Reason.CANCEL)
        await here.others()
        assert not worker.worker.partitions[0].gaps.parked
        here.judge = here.old  # the command waited in vain: the other version remembers it
