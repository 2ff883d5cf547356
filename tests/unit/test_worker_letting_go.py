"""A worker's partitions: what is asked back it drains, what is lost it drops (`runfold.worker`)."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from runfold.core.events import (
    LeaseAcquired,
    ModelStepCompleted,
    RunFinished,
    RunStarted,
    StepAborted,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolResult
from tests.engine import done, text
from tests.unit.worker_stage import Held, Stage, holding_model, holding_tool, let_go, staged, ticks


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


async def test_who_is_told_of_a_partition_let_go_finds_the_worker_without_it(stage: Stage) -> None:
    engine = await stage.owner()
    held: list[frozenset[int]] = []
    engine.notes.released = lambda partition: held.append(engine.worker.held)  # type: ignore[method-assign]
    engine.grant([], stage.proof)
    await let_go(engine)
    await ticks()
    assert held == [frozenset()]


# ---- drained


async def test_a_partition_that_is_asked_back_ends_what_runs_and_begins_nothing(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(holding_model(held))
    id_ = await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await ticks()
    assert engine.worker.held == {0}
    held.released.set()
    await let_go(engine)
    assert len(stage.log(ModelStepCompleted)) == 1, "the answer was paid for and is kept"
    assert stage.log(ToolStepStarted, RunFinished) == []

    successor = await stage.owner()
    await successor.notes.until(lambda: id_ in successor.notes.ended)
    assert len(stage.ledger.model_calls) == 2, "a planned restart repeats no model call"
    assert set(stage.ledger.executions.values()) == {1}


async def test_a_request_that_comes_while_draining_is_left_for_the_next_owner(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held))
    await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await stage.request()
    await ticks()
    held.released.set()
    await let_go(engine)
    assert len(stage.log(RunStarted)) == 1
    assert len(stage.log(ToolStepFinished)) == 1


async def test_a_drain_writes_no_terminal_event(stage: Stage) -> None:
    """The final answer is there when the partition is asked back: that the run has ended is for the next owner to say."""
    held = Held()

    async def reply(request: ModelRequest) -> ModelAnswer:
        await held.hold()
        return text("done")

    engine = await stage.owner(ScriptedModel(reply))
    id_ = await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    held.released.set()
    await let_go(engine)
    assert stage.log(RunFinished) == []
    successor = await stage.owner()
    await successor.notes.until(lambda: id_ in successor.notes.ended)
    assert successor.notes.ended[id_].output == "done"
    assert len(stage.ledger.model_calls) == 1


async def test_a_step_that_does_not_end_is_aborted_in_time(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held), drain_seconds=0.1)
    await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await let_go(engine)
    assert stage.log(ToolStepFinished) == []
    assert engine.resources.tool_slots.take("next", lambda: None)


async def test_an_abort_that_a_tool_does_not_heed_is_in_the_log_all_the_same(stage: Stage) -> None:
    """The partition is held for as long as the tool acts, and what it comes back with counts no more."""
    held, refused = Held(), asyncio.Event()

    async def body(request: ToolCallRequest) -> ToolResult:
        while True:
            try:
                await held.hold()
                return done("at last")
            except asyncio.CancelledError:
                refused.set()

    engine = await stage.owner(body=body, drain_seconds=0.1)
    await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await stage.until(lambda: len(stage.log(StepAborted)) == 1)
    await refused.wait()
    await ticks()
    assert engine.worker.held == {0}
    held.released.set()
    await let_go(engine)
    assert stage.log(ToolStepFinished) == []
    assert len(engine.notes.late_results) == 1


async def test_an_idle_partition_is_let_go_at_once(stage: Stage) -> None:
    engine = await stage.owner(drain_seconds=60)
    id_ = await stage.request()
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    began = time.monotonic()
    engine.grant([], stage.proof, leaving=[0])
    await let_go(engine)
    assert time.monotonic() - began < 5


async def test_what_is_waiting_for_a_slot_is_not_waited_for(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held), max_tool_calls=1, drain_seconds=60)
    for _ in range(3):
        await stage.request()
    await held.entered.wait()
    await stage.until(lambda: len(stage.log(ModelStepCompleted)) == 3)
    engine.grant([], stage.proof, leaving=[0])
    held.released.set()
    await let_go(engine)
    assert len(stage.log(ToolStepStarted)) == len(stage.log(ToolStepFinished)) == 1


# ---- lost


async def test_a_lost_partition_is_dropped_at_once_and_what_runs_is_aborted(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held), drain_seconds=60)
    await stage.request()
    await held.entered.wait()
    before = stage.log()
    engine.grant([], b"")
    held.released.set()
    await let_go(engine)
    await stage.owner(body=holding_tool(held))
    assert stage.log()[: len(before) + 1] == [*before, stage.log(LeaseAcquired)[-1]]


async def test_one_that_is_lost_while_it_is_drained_is_not_drained_any_more(stage: Stage) -> None:
    """Another owner may be making the same tool call by now: going on until the drain's limit would double it."""
    held = Held()
    engine = await stage.owner(body=holding_tool(held), drain_seconds=60)
    await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await ticks()
    began = time.monotonic()
    engine.grant([], b"")
    await let_go(engine)
    assert time.monotonic() - began < 5


async def test_a_partition_that_comes_back_while_it_is_let_go_is_taken_over_anew(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held))
    id_ = await stage.request()
    await held.entered.wait()
    engine.grant([], stage.proof, leaving=[0])
    await ticks()
    engine.grant([0], stage.proof)
    held.released.set()
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert len(engine.notes.epochs) == 2
    assert set(stage.ledger.executions.values()) == {1}, "it was let end before"


async def test_a_partition_that_was_lost_and_regained_learns_what_happened_meanwhile(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held))
    id_ = await stage.request()
    await held.entered.wait()
    engine.grant([], b"")
    await let_go(engine)
    other = await stage.owner()
    await other.notes.until(lambda: id_ in other.notes.ended)
    other.grant([], stage.proof, leaving=[0])
    await let_go(other)
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: len(engine.notes.epochs) == 2)
    held.released.set()
    await ticks()
    assert stage.ledger.executions == {f"{id_}/1/a": 2}, "once by each, and not again"
    assert len(stage.log(RunFinished)) == 1
    assert stage.log()[-1] == stage.log(LeaseAcquired)[-1]


async def test_a_zombie_is_fenced_and_lets_the_rightful_owner_be(stage: Stage) -> None:
    """The first worker is never told that it lost the partition; the second one owns it."""
    held = Held()
    zombie = await stage.owner(holding_model(held))
    id_ = await stage.request()
    await held.entered.wait()
    owner = await stage.owner()
    await owner.notes.until(lambda: id_ in owner.notes.ended)
    held.released.set()
    await zombie.notes.until(lambda: len(zombie.notes.resets) == 1)
    await asyncio.sleep(0.2)
    assert len(zombie.notes.epochs) == 1, "its grant is older than the error: it waits"
    assert len(stage.log(RunFinished)) == 1
    zombie.grant([], b"")


# ---- closed


async def test_closing_does_not_wait_for_a_broker_that_is_away(stage: Stage) -> None:
    engine = await stage.owner()
    stage.broker.stop()
    await stage.engine().close()
    began = time.monotonic()
    await engine.close()
    assert time.monotonic() - began < 5
    assert engine.worker.held == frozenset()
