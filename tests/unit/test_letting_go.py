"""What a worker does when its partition is asked back, and when a run needs a newer worker than itself."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runfold.core.decide import MAX_STARTS
from runfold.core.events import (
    Event,
    ModelStepStarted,
    Reason,
    RunRequested,
    RunSuspended,
    SideEffect,
    Status,
    StepAborted,
    ToolStepStarted,
)
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryMembership, MemoryTail
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from runfold.worker.worker import ABORT_SECONDS
from tests.contract.log_suite import run_on
from tests.engine import Engine, Ledger, ScriptedTools, done, text, tool_use, turns

ONCE = ToolPolicy(side_effect=SideEffect.EXTERNAL, repeatable=False)
AGAIN = ToolPolicy(side_effect=SideEffect.EXTERNAL)


class House:
    """A broker with one run on partition 0, and workers that come one after the other."""

    def __init__(self) -> None:
        self.broker, self.ledger, self.run_id = MemoryBroker(4), Ledger(), run_on(0)
        self.gate, self.at_the_gate = asyncio.Event(), asyncio.Event()
        self.policy = ONCE
        self.gated = ""  # where a step waits at the gate: "model 1", "tool"
        membership = MemoryMembership(self.broker.group)
        membership.join(lambda partitions: None)
        membership.poll(0)
        self.proof = membership.proof
        self.workers: list[Engine] = []

    async def submit(self, run_id: str) -> None:
        await MemoryCommands(self.broker).send(RunRequested(run_id=run_id, agent="default", input="go"))

    def worker(self, drain_seconds: float = 20.0) -> Engine:
        tools = ScriptedTools(self.ledger, self._tool, self.policy)
        worker = Engine(MemoryLog(self.broker), ScriptedModel(self._model), self.ledger, tools=tools, drain_seconds=drain_seconds)
        self.workers.append(worker)
        worker.grant([0], self.proof)
        return worker

    async def _model(self, request: ModelRequest) -> ModelAnswer:
        await self._pass(f"model {request.seq}")
        return turns(tool_use(("a", "once", {})), text("done"))(request)

    async def _tool(self, request: ToolCallRequest) -> ToolResult:
        await self._pass("tool")
        return done("result")

    async def _pass(self, place: str) -> None:
        if place == self.gated:
            self.at_the_gate.set()
            await self.gate.wait()

    async def starts(self) -> list[tuple[int, int]]:
        """(seq, attempt) of each step that the log knows as started."""
        return [
            (event.seq, event.attempt) for event in await self.events() if isinstance(event, ModelStepStarted | ToolStepStarted)
        ]

    async def aborts(self) -> list[tuple[int, int]]:
        """(seq, attempt) of each attempt that an owner says it aborted."""
        return [(event.seq, event.attempt) for event in await self.events() if isinstance(event, StepAborted)]

    async def events(self) -> list[Event]:
        return [record.event for record in await MemoryTail(self.broker).records(self.run_id, 0)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    for worker in house.workers:
        await worker.close()
        await worker.resources.log.close()
        assert worker.failures == []


async def let_go(worker: Engine) -> None:
    async with asyncio.timeout(20):
        while worker.worker.held:  # noqa: ASYNC110  # the last thing it tells of comes before
            await asyncio.sleep(0)


@pytest.mark.parametrize(("gated", "begun"), [("model 1", [(1, 1)]), ("tool", [(1, 1), (2, 1)])])
async def test_a_planned_stop_repeats_nothing(house: House, gated: str, begun: list[tuple[int, int]]) -> None:
    house.gated = gated
    worker = house.worker()
    await house.submit(house.run_id)
    await house.at_the_gate.wait()
    worker.grant([], house.proof, leaving=[0])
    assert worker.worker.held == {0}, "it holds the partition until the step has ended"
    house.gate.set()
    await let_go(worker)
    assert await house.starts() == begun, "and begins no other"
    successor = house.worker()
    await successor.notes.until(lambda: house.run_id in successor.notes.ended)
    assert successor.notes.ended[house.run_id].status is Status.SUCCEEDED
    assert await house.starts() == [(1, 1), (2, 1), (3, 1)]
    assert [call[1:] for call in house.ledger.model_calls] == [(1, 1), (3, 1)]
    assert list(house.ledger.executions.values()) == [1]


async def stop_in_mid_step(house: House) -> None:
    """A worker that is stopped while a step waits at the gate, and does not wait for it."""
    house.at_the_gate.clear()
    worker = house.worker(drain_seconds=0.05)
    await house.at_the_gate.wait()
    worker.grant([], house.proof, leaving=[0])
    await let_go(worker)


@pytest.mark.parametrize(("gated", "step"), [("model 1", (1, 1)), ("tool", (2, 1))])
async def test_a_step_that_does_not_end_in_time_is_aborted_and_made_again(
    house: House, gated: str, step: tuple[int, int]
) -> None:
    """However often that happens: it is not the step that kills its workers."""
    house.gated, house.policy = gated, AGAIN
    await house.submit(house.run_id)
    stops = MAX_STARTS + 1
    for _ in range(stops):
        await stop_in_mid_step(house)
    house.gate.set()
    successor = house.worker()
    await successor.notes.until(lambda: house.run_id in successor.notes.ended)
    assert successor.notes.ended[house.run_id].status is Status.SUCCEEDED
    starts = await house.starts()
    assert [start for start in starts if start[0] == step[0]] == [(step[0], attempt) for attempt in range(1, stops + 2)]
    assert await house.aborts() == [(step[0], attempt) for attempt in range(1, stops + 1)]


async def test_a_tool_that_cannot_be_repeated_is_not_taken_for_aborted(house: House) -> None:
    house.gated = "tool"
    await house.submit(house.run_id)
    await stop_in_mid_step(house)
    successor = house.worker()
    await successor.notes.until(lambda: any(isinstance(each.event, RunSuspended) for each in successor.notes.applied_records))
    *_, last = await house.events()
    assert isinstance(last, RunSuspended)
    assert last.reason is Reason.OUTCOME_UNKNOWN
    assert await house.aborts() == []


async def test_a_stop_waits_no_longer_than_it_may_for_a_log_that_is_away(house: House) -> None:
    """What was aborted goes unsaid then, and counts as a crash."""
    house.gated = "model 1"
    await house.submit(house.run_id)
    worker = house.worker(drain_seconds=0.05)
    await house.at_the_gate.wait()
    house.broker.stop()
    worker.grant([], house.proof, leaving=[0])
    async with asyncio.timeout(ABORT_SECONDS + 5):
        await let_go(worker)
    house.broker.start()
    assert await house.aborts() == []


async def test_a_record_of_a_newer_version_stops_its_run_and_no_other(house: House) -> None:
    house.gated = "model 1"
    worker, other = house.worker(), run_on(0)
    await house.submit(house.run_id)
    await house.at_the_gate.wait()
    house.broker.put(0, house.run_id.encode(), b"\xc3\x01newer!!! and then", b"RunTeleported")
    house.gated = ""
    await house.submit(other)
    await worker.notes.until(lambda: other in worker.notes.ended)
    house.gate.set()
    assert house.run_id not in worker.notes.ended
    assert await house.starts() == [(1, 1)], "nothing is written for it, also not what had begun"
    assert house.broker.dead_letters == [], "a newer worker will read it where it stands"
