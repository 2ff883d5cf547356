"""With overlap, what is harmless begins while the commit that led to it is under way (`Flow.startable`)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from runfold.core.errors import LogUnavailable
from runfold.core.events import ModelStepStarted, OwnerEvent, RunRequested, SideEffect, Status, ToolStepFinished, ToolStepStarted
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryTail
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from tests.changes import Changes
from tests.engine import Engine, Ledger, ScriptedTools, done, text, tool_use, turns

ANSWERS = turns(tool_use(("t1", "look", {})), tool_use(("t2", "look", {})), text("done"))


class House:
    """One worker with overlap, over one partition whose commits can be held up, or refused once."""

    def __init__(self) -> None:
        self.broker, self.ledger = MemoryBroker(1), Ledger()
        self.broker.group.join("group")
        self.broker.before_commit = self._before
        self.held = 0  # commits that start this step, or a later one, wait
        self.refused = 0  # the next such commit fails
        self.released = asyncio.Event()
        self.tools_end = asyncio.Event()
        self.tools_end.set()
        self.tools_end = asyncio.Event()
        self.tools_end.set()
        self.called: list[str] = []
        self._changes = Changes()
        self.engine: Engine | None = None

    async def _before(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        starts = [event.seq for event in events if isinstance(event, ModelStepStarted | ToolStepStarted)]
        if self.held and any(seq >= self.held for seq in starts):
            await self.released.wait()
        if self.refused and any(seq >= self.refused for seq in starts):
            self.refused = 0
            raise LogUnavailable("the test says so")

    def _call(self, what: str) -> None:
        self.called.append(what)
        self._changes.tell()

    def start(self, side_effect: SideEffect = SideEffect.READ, overlap: bool = True) -> Engine:
        async def body(request: ToolCallRequest) -> ToolResult:
            self._call(f"tool {request.seq}")
            await self.tools_end.wait()
            await self.tools_end.wait()
            return done("seen")

        def answer(request: ModelRequest) -> ModelAnswer:
            self._call(f"model {request.seq}")
            return ANSWERS(request)

        tools = ScriptedTools(self.ledger, body, ToolPolicy(side_effect=side_effect))
        self.engine = Engine(MemoryLog(self.broker), ScriptedModel(answer), self.ledger, tools=tools, overlap=overlap)
        self.engine.grant([0], self.broker.group.proof("group"))
        return self.engine

    async def request(self) -> str:
        run_id = str(uuid4())
        await MemoryCommands(self.broker).send(RunRequested(run_id=run_id, agent="default", input="go"))
        return run_id

    async def until_called(self, what: str) -> None:
        await self._changes.until(lambda: what in self.called, 10)

    async def log(self, run_id: str) -> list[str]:
        return [type(record.event).__name__ for record in await MemoryTail(self.broker).records(run_id, 0)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    if house.engine is not None:
        await house.engine.close()
        assert house.engine.failures == []


async def ticks() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_call_begins_while_its_start_is_being_committed(house: House) -> None:
    house.held = 4
    engine = house.start()
    run_id = await house.request()
    await house.until_called("tool 4")
    assert (await house.log(run_id)).count("ToolStepStarted") == 1
    house.released.set()
    await engine.notes.until(lambda: run_id in engine.notes.ended)
    assert house.called == ["model 1", "tool 2", "model 3", "tool 4", "model 5"]
    assert (await house.log(run_id)).count("ToolStepStarted") == 2


@pytest.mark.parametrize(
    ("side_effect", "overlap"), [(SideEffect.WRITE, True), (SideEffect.EXTERNAL, True), (SideEffect.READ, False)]
)
async def test_what_writes_never_does_nor_does_anything_in_the_strict_order(
    house: House, side_effect: SideEffect, overlap: bool
) -> None:
    house.held = 4
    engine = house.start(side_effect, overlap)
    run_id = await house.request()
    await house.until_called("model 3")
    await ticks()
    assert house.called[-1] == "model 3"
    house.released.set()
    await engine.notes.until(lambda: run_id in engine.notes.ended)


@pytest.mark.parametrize("step", [1, 2])
async def test_an_owner_that_has_not_brought_the_run_forward_runs_nothing_ahead(house: House, step: int) -> None:
    house.held = step
    engine = house.start()
    run_id = await house.request()
    if step > 1:
        await house.until_called("model 1")
    await ticks()
    assert len(house.called) == step - 1
    house.released.set()
    await engine.notes.until(lambda: run_id in engine.notes.ended)


async def test_one_step_is_ahead_of_the_log_and_no_more(house: House) -> None:
    house.held = 4
    engine = house.start()
    run_id = await house.request()
    await house.until_called("tool 4")
    await ticks()
    assert house.called[-1] == "tool 4", "it has ended, and what follows it waits"
    house.released.set()
    await engine.notes.until(lambda: run_id in engine.notes.ended)


async def test_a_reset_costs_no_call_that_ran_ahead(house: House) -> None:
    house.held = house.refused = 4
    engine = house.start()
    run_id = await house.request()
    await house.until_called("tool 4")
    house.released.set()
    await engine.notes.until(lambda: run_id in engine.notes.ended)
    assert len(engine.notes.resets) == 1
    assert engine.notes.ended[run_id].status is Status.SUCCEEDED
    assert house.called.count("tool 4") == 1


async def test_a_drain_lets_a_call_that_runs_ahead_finish(house: House) -> None:
    house.held = 4
    engine = house.start()
    run_id = await house.request()
    await house.until_called("model 3")
    house.tools_end.clear()
    await house.until_called("tool 4")
    engine.grant([], house.broker.group.proof("group"), leaving=[0])
    await ticks()
    house.released.set()
    await ticks()
    assert engine.worker.held == {0}
    house.tools_end.set()
    async with asyncio.timeout(10):
        while engine.worker.held:  # noqa: ASYNC110 - a worker tells nobody when it holds nothing any more
            await asyncio.sleep(0.005)
    assert (await house.log(run_id))[-1] == ToolStepFinished.__name__


async def test_no_end_without_its_start_where_a_record_cannot_be_read_and_the_partition_is_let_go(house: House) -> None:
    house.tools_end.clear()
    engine = house.start()
    run_id = await house.request()
    await house.until_called("tool 2")
    await house.request()
    house.broker.latency = 0.3  # of what is written for it: all that the other run writes waits behind it
    await ticks()
    house.tools_end.set()
    await house.until_called("model 3")
    house.broker.put(0, run_id.encode(), b"?", lane=b"anybody:1")
    await engine.notes.until(lambda: bool(engine.notes.unreadable_records))
    engine.grant([], house.broker.group.proof("group"), leaving=[0])
    house.broker.latency = 0.0
    async with asyncio.timeout(10):
        while engine.worker.held:  # noqa: ASYNC110 - a worker tells nobody when it holds nothing any more
            await asyncio.sleep(0.005)
    written = await house.log(run_id)
    assert written.count("ModelStepCompleted") == written.count("ModelStepStarted") == 2
    assert written[-1] == "RunSuspended"
