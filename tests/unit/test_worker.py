"""A worker's partitions: what is granted it owns and works on, within its limits (`runfold.worker`)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runfold.core.events import (
    CommandRejected,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepStarted,
    Reason,
    RunCancelRequested,
    RunFinished,
    RunStarted,
    Status,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.log.memory import MemoryCommands
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolResult
from runfold.worker.flow import Flow
from runfold.worker.partition import Partition
from tests.engine import done, text, tool_use, turns
from tests.unit.worker_stage import PATIENCE, Held, Stage, holding_model, holding_tool, staged, ticks

SILENCE = 60.0  # seconds: no machine is so slow that a grant grows so old on its own


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


# ---- granted


async def test_a_partition_is_owned_once_it_is_granted_and_not_before(stage: Stage) -> None:
    id_ = await stage.request()
    engine = stage.engine()
    engine.grant([], stage.proof)
    await ticks()
    assert stage.log(LeaseAcquired, RunStarted) == []
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert engine.worker.held == {0}
    assert [type(event).__name__ for event in stage.log()] == [
        "RunRequested",
        "LeaseAcquired",
        "RunStarted",
        "ModelStepStarted",
        "ModelStepCompleted",
        "ToolStepStarted",
        "ToolStepFinished",
        "ModelStepStarted",
        "ModelStepCompleted",
        "RunFinished",
    ]


async def test_the_same_grant_again_changes_nothing(stage: Stage) -> None:
    engine = await stage.owner()
    for _ in range(5):
        engine.grant([0], stage.proof)
    await ticks()
    assert len(stage.log(LeaseAcquired)) == 1


# ---- a keeper that is frozen


async def test_a_worker_whose_keeper_is_silent_starts_nothing_and_goes_on_when_it_speaks(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(holding_model(held), silence_seconds=SILENCE)
    id_ = await stage.request()
    await held.entered.wait()
    engine.grant([0], stage.proof, age=SILENCE)
    held.released.set()
    await stage.until(lambda: len(stage.log(ModelStepCompleted)) == 1)
    await ticks()
    assert not stage.ledger.executions, "no tool runs"
    assert stage.log(ToolStepStarted) == [], "and none is said to: it would look as if its outcome were unknown"
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert set(stage.ledger.executions.values()) == {1}


async def test_a_worker_that_stood_still_between_saying_and_doing_asks_again_whether_it_may(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps were told to begin, and it was stopped for longer than a grant lasts before one of them ran."""
    begin = Partition._begin_steps

    def begin_and_stand_still(partition: Partition, flow: Flow) -> None:
        begin(partition, flow)
        if any(step.begun for step in flow.hand.values()):
            engine.grant([0], stage.proof, age=SILENCE)
            monkeypatch.setattr(Partition, "_begin_steps", begin)

    engine = await stage.owner(silence_seconds=SILENCE)
    monkeypatch.setattr(Partition, "_begin_steps", begin_and_stand_still)
    id_ = await stage.request()
    await stage.until(lambda: len(stage.log(ModelStepStarted)) == 1)
    await ticks()
    assert stage.ledger.model_calls == [], "another may own the run by now"
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert len(stage.log(ModelStepStarted)) == len(stage.ledger.model_calls) == 2, "each is made once, under its one start"


async def test_what_was_started_before_the_silence_is_ended(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(body=holding_tool(held), silence_seconds=SILENCE)
    await stage.request()
    await held.entered.wait()
    engine.grant([0], stage.proof, age=SILENCE)
    held.released.set()
    await stage.until(lambda: len(stage.log(ToolStepFinished)) == 1)
    await ticks()
    assert len(stage.log(ModelStepStarted)) == 1, "nothing new"


# ---- limits


async def test_no_more_model_calls_at_a_time_than_allowed_and_each_run_has_its_turn(stage: Stage) -> None:
    running, most = 0, 0

    async def reply(request: ModelRequest) -> ModelAnswer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ticks()
        running -= 1
        return text("done")

    engine = await stage.owner(ScriptedModel(reply), max_model_calls=2)
    ids = [await stage.request() for _ in range(9)]
    await engine.notes.until(lambda: engine.notes.ended.keys() >= set(ids))
    assert most == 2


async def test_a_turn_with_many_calls_does_not_keep_the_other_runs_waiting(stage: Stage) -> None:
    order: list[str] = []

    async def body(request: ToolCallRequest) -> ToolResult:
        order.append(request.run_id)
        await ticks()
        return done("ok")

    many = tool_use(*((f"t{n}", "act", {}) for n in range(6)))
    engine = await stage.owner(ScriptedModel(turns(many, text("done"))), body, max_tool_calls=1)
    ids = [await stage.request() for _ in range(2)]
    await engine.notes.until(lambda: engine.notes.ended.keys() >= set(ids))
    assert len(set(order[:3])) == 2, "both are served from the beginning"


# ---- what cannot be done


async def test_an_agent_that_nobody_serves_fails_its_run(stage: Stage) -> None:
    engine = await stage.owner()
    id_ = await stage.request(agent="nobody")
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    run = engine.notes.ended[id_]
    assert (run.status, run.reason) == (Status.FAILED, Reason.UNKNOWN_AGENT)
    assert "nobody" in run.detail
    assert not stage.ledger.model_calls


async def test_a_command_of_any_size_ends_its_run_and_not_the_worker(stage: Stage) -> None:
    held = Held()
    engine = await stage.owner(holding_model(held))
    id_ = await stage.request()
    await held.entered.wait()
    huge = RunCancelRequested(run_id=id_, command_id="c", requested_by="x" * 900_000, detail="d" * 900_000)
    for _ in range(2):  # the second one comes after the end, and is rejected
        await MemoryCommands(stage.broker).send(huge)
        await engine.notes.until(lambda: id_ in engine.notes.ended)
    await stage.until(lambda: len(stage.log(CommandRejected)) == 1)
    assert [event.status for event in stage.log(RunFinished) if isinstance(event, RunFinished)] == [Status.CANCELLED]


async def test_an_exception_that_nobody_expected_is_told(stage: Stage) -> None:
    async def body(request: ToolCallRequest) -> ToolResult:
        raise ZeroDivisionError("the tools port may not raise")

    engine = await stage.owner(body=body)
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    engine.worker.failed = told.set_result
    engine.worker.partitions[0].failed = told.set_result
    await stage.request()
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await told, ZeroDivisionError)
