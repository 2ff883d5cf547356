"""A worker's partitions: what is granted it owns, what is asked back it drains, what is lost it drops (`runfold.worker`)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from runfold.core.errors import LogUnavailable
from runfold.core.events import (
    CommandRejected,
    Event,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepStarted,
    OwnerEvent,
    Reason,
    Record,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunSnapshotted,
    RunStarted,
    Status,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.shard import OVERLAP
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog
from runfold.log.wire import read
from runfold.model.scripted import ScriptedModel
from runfold.ports import Model, ModelAnswer, ModelRequest, ToolCallRequest, ToolResult
from runfold.worker import carrier
from runfold.worker.flow import Flow
from tests.engine import Body, Engine, Ledger, ScriptedTools, done, text, tool_use, turns

PATIENCE = 20.0
TOOL_THEN_TEXT = (tool_use(("a", "act", {"n": 1})), text("done"))


class Held:
    """Something that waits until it is released, and tells when it is there."""

    def __init__(self) -> None:
        self.entered, self.released = asyncio.Event(), asyncio.Event()

    async def hold(self) -> None:
        self.entered.set()
        await self.released.wait()


class Stage:
    """A broker with one partition, and workers one after the other, or side by side."""

    def __init__(self) -> None:
        self.broker, self.ledger = MemoryBroker(1), Ledger()
        self.engines: list[Engine] = []
        self.broker.group.join("group")  # one member stands for all of it: who owns what, the tests say

    @property
    def proof(self) -> bytes:
        return self.broker.group.proof("group")

    def engine(self, model: Model | None = None, body: Body | None = None, **options: Any) -> Engine:
        tools = ScriptedTools(self.ledger, body)
        name = f"worker-{len(self.engines) + 1}"
        scripted = model or ScriptedModel(turns(*TOOL_THEN_TEXT))
        engine = Engine(MemoryLog(self.broker), scripted, self.ledger, tools=tools, name=name, **options)
        self.engines.append(engine)
        return engine

    async def owner(self, model: Model | None = None, body: Body | None = None, **options: Any) -> Engine:
        engine = self.engine(model, body, **options)
        engine.grant([0], self.proof)
        await engine.notes.until(lambda: len(engine.notes.epochs) == 1)
        return engine

    async def request(self, **fields: Any) -> str:
        id_ = str(uuid4())
        await MemoryCommands(self.broker).send(RunRequested(**{"run_id": id_, "agent": "default", "input": "go", **fields}))
        return id_

    def log(self, *kinds: type[Event]) -> list[Event]:
        """What is committed, of these kinds or of all."""
        found = [read(stored.raw, self.broker.codec, 1) for stored in self.broker.partitions[0].visible(0)]
        events = [record.event for record in found if isinstance(record, Record)]
        return [event for event in events if not kinds or isinstance(event, kinds)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Until the log is so."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                await self.broker.partitions[0].changed.wait()

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()
        assert [failure for engine in self.engines for failure in engine.failures] == []


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.close()


async def let_go(engine: Engine) -> None:
    """Until the worker holds nothing any more."""
    async with asyncio.timeout(PATIENCE):
        while engine.worker.held:
            await asyncio.wait(engine.worker._letting_go.values())
            await asyncio.sleep(0)


async def ticks() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def holding_tool(held: Held) -> Body:
    async def body(request: ToolCallRequest) -> ToolResult:
        await held.hold()
        return done("at last")

    return body


def holding_model(held: Held) -> ScriptedModel:
    """Holds its first turn."""

    async def reply(request: ModelRequest) -> ModelAnswer:
        if len(request.messages) == 1:
            await held.hold()
        return turns(*TOOL_THEN_TEXT)(request)

    return ScriptedModel(reply)


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


# ---- a keeper that is frozen


@pytest.mark.parametrize("silence", [0.1])
async def test_a_worker_whose_keeper_is_silent_starts_nothing_and_goes_on_when_it_speaks(stage: Stage, silence: float) -> None:
    held = Held()
    engine = await stage.owner(holding_model(held), silence_seconds=silence)
    id_ = await stage.request()
    await held.entered.wait()
    await asyncio.sleep(silence)  # the grant grows old: this is what the test is about
    held.released.set()
    await stage.until(lambda: len(stage.log(ModelStepCompleted)) == 1)
    await asyncio.sleep(silence)
    assert not stage.ledger.executions, "no tool runs"
    assert stage.log(ToolStepStarted) == [], "and none is said to: it would look as if its outcome were unknown"
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert set(stage.ledger.executions.values()) == {1}


async def test_what_was_started_before_the_silence_is_ended(stage: Stage) -> None:
    held = Held()
    await stage.owner(body=holding_tool(held), silence_seconds=0.1)
    await stage.request()
    await held.entered.wait()
    await asyncio.sleep(0.15)
    held.released.set()
    await stage.until(lambda: len(stage.log(ToolStepFinished)) == 1)
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


# ---- snapshots


async def test_a_snapshot_that_a_command_overtook_is_passed_over(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing: neither is what was planned beside it planned once more."""
    for name, value in {"BEHIND": 3, "FACTOR": 0, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(carrier, name, value)
    due = carrier.Carrier.due

    def overtaken(*state: Any) -> Iterator[tuple[Flow, RunSnapshotted]]:
        for flow, snapshot in due(*state):
            cancel = RunCancelRequested(run_id=flow.run.id, command_id="c", requested_by="test")
            stage.broker.put(0, flow.run.id.encode(), stage.broker.codec.encode(cancel))
            yield flow, snapshot

    monkeypatch.setattr(carrier.Carrier, "due", overtaken)
    held = Held()
    engine = await stage.owner(holding_model(held))
    id_ = await stage.request()
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    await engine.notes.until(lambda: engine.worker.partitions[0].lane.idle)
    names = [type(event).__name__ for event in stage.log()]
    assert "RunSnapshotted" in names
    assert names.count("RunFinished") == 1
    assert names.index("RunCancelRequested") < names.index("RunSnapshotted")


# ---- takeovers


async def test_a_takeover_that_dies_at_once_does_not_make_the_next_one_longer(stage: Stage) -> None:
    """Where folding must start never goes backwards, however often a worker dies right after its marker."""
    stage.broker.partitions[0].position = type(stage.broker.partitions[0].position)(5 * OVERLAP, 4 * OVERLAP)
    stage.broker.partitions[0].end = 5 * OVERLAP
    lows = []
    for _ in range(5):
        marker_committed = asyncio.Event()

        async def after(partition: int, events: Sequence[OwnerEvent], told: asyncio.Event = marker_committed) -> None:
            told.set()
            await asyncio.Event().wait()

        stage.broker.after_commit = after
        engine = stage.engine()
        engine.grant([0], stage.proof)
        await marker_committed.wait()
        await engine.close()
        lows.append(stage.broker.partitions[0].position.low)
    assert lows == sorted(lows)
    assert lows[0] >= 4 * OVERLAP


async def test_a_reset_counts_no_record_twice(stage: Stage) -> None:
    """What `Observer.acquired` says was folded: all of it at the first takeover, nothing at one that only mends the lane."""
    folded: list[int] = []
    for _ in range(3):
        await stage.request(agent="nobody")
    engine = stage.engine()
    engine.notes.acquired = _telling(engine, folded)  # type: ignore[method-assign, assignment]
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: len(engine.notes.ended) == 3)
    once = iter([LogUnavailable("no answer")])

    async def before(partition: int, events: Sequence[OwnerEvent]) -> None:
        for error in once:
            raise error

    stage.broker.before_commit = before
    await stage.request(agent="nobody")
    await engine.notes.until(lambda: len(engine.notes.ended) == 4)
    assert folded == [4, 0], "three requests and the marker"


def _telling(engine: Engine, folded: list[int]) -> Callable[[int, int, int, float], None]:
    told = engine.notes.acquired

    def acquired(partition: int, epoch: int, records: int, seconds: float) -> None:
        folded.append(records)
        told(partition, epoch, records, seconds)

    return acquired


async def test_closing_does_not_wait_for_a_broker_that_is_away(stage: Stage) -> None:
    engine = await stage.owner()
    stage.broker.stop()
    await stage.engine().close()
    began = time.monotonic()
    await engine.close()
    assert time.monotonic() - began < 5
    assert engine.worker.held == frozenset()
