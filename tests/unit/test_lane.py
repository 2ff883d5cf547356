"""The append path of a partition: group commit, echo, and the one way back after any error (`runfold.worker.lane`)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest

from runfold.core.errors import Expelled, Fenced, LogError, LogUnavailable
from runfold.core.events import (
    AgentDefinition,
    CommandRejected,
    LeaseAcquired,
    ModelStepCompleted,
    OwnerEvent,
    Reason,
    Record,
    Rejection,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    SideEffect,
    Status,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.log.codec import Codec
from runfold.log.memory import MemoryBroker, MemoryLog
from runfold.ports import Grant, Position
from runfold.worker import lane as lane_module
from runfold.worker.lane import Lane
from runfold.worker.resources import Resources
from runfold.worker.size import weight
from runfold.worker.sound import LONGEST
from tests.contract.log_suite import run_on
from tests.engine import FlatPrice, NoRetry, Notes

PATIENCE = 20.0
BEAT = 0.05
RUN = run_on(0)


def event(name: str = "c") -> CommandRejected:
    return CommandRejected(run_id=RUN, epoch=0, command_id=name, reason=Rejection.RUN_FINISHED)


def large(size: int) -> ToolStepFinished:
    return ToolStepFinished(
        run_id=RUN,
        epoch=0,
        seq=1,
        model_seq=1,
        tool_use_id="a",
        attempt=1,
        status=ToolStatus.DONE,
        content_json=f'"{"x" * size}"',
        latency_ms=0,
    )


class World:
    """A broker with one partition, a lane that serves it, and its owner: it reads, and it does nothing else."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(1)
        self.broker.group.join("me")
        self.broker.group.take("me")
        self.log = MemoryLog(self.broker)
        self.notes = Notes()
        unused = cast(Any, None)
        self.resources = Resources(
            worker="w",
            build="test",
            log=self.log,
            model=unused,
            agents=unused,
            pricing=FlatPrice(),
            retries=NoRetry(),
            observer=self.notes,
            beat_seconds=BEAT,
            echo_seconds=0.3,
        )
        self.now = self.granted()
        self.lane = Lane(0, self.resources, lambda: self.now, self)
        self.transactions: list[list[OwnerEvent]] = []
        self.errors: list[LogError] = []
        self.listening = asyncio.Event()
        self.listening.set()
        self.next = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    def granted(self, **facts: Any) -> Grant:
        given = {"partitions": frozenset({0}), "proof": self.broker.group.proof("me"), "at": time.monotonic()}
        self.now = Grant(**{**given, **facts})
        return self.now

    def grant(self, **facts: Any) -> None:
        self.granted(**facts)
        self.lane.granted()

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self.lane.run()))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def note(self) -> None:
        self._changed.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.log.close()

    # ---- the owner

    def position(self) -> Position:
        return Position(self.next, 0)

    async def fenced(self) -> None:
        if len(self._tasks) == 1:
            self._tasks.append(asyncio.create_task(self._read()))

    def interrupted(self, error: LogError) -> None:
        self.errors.append(error)
        self.note()

    async def _read(self) -> None:
        async for batch in await self.log.read(0, 0):
            for delivery in batch:
                assert isinstance(delivery, Record)
                await self.listening.wait()
                self.next = delivery.offset + 1
                self.lane.read_back(delivery.event)
            self.lane.moved()
            self.note()

    # ---- what is in the log

    async def committed(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        """As the broker's ``after_commit``."""
        self.transactions.append(list(events))
        self.note()

    def names(self) -> list[list[str]]:
        """Of the events of each transaction."""
        return [[getattr(event, "command_id", "marker") for event in events] for events in self.transactions]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.broker.after_commit = world.committed
    yield world
    await world.close()


async def owning(world: World) -> World:
    world.start()
    await world.until(lambda: world.names() == [["marker"]] and world.lane.idle)
    return world


def failing(error: Callable[[], LogError], times: int = 1) -> Callable[[int, Sequence[OwnerEvent]], Any]:
    """A ``before_commit`` that fails so often."""
    left = iter(range(times))

    async def before(partition: int, events: Sequence[OwnerEvent]) -> None:
        if next(left, None) is not None:
            raise error()

    return before


async def some_ticks() -> None:
    """Let the loop run whatever could run now."""
    for _ in range(20):
        await asyncio.sleep(0)


# ---- transactions


async def test_the_marker_comes_first_and_alone(world: World) -> None:
    world.lane.submit(event("early"))
    world.start()
    await world.until(lambda: len(world.transactions) == 2)
    assert world.names() == [["marker"], ["early"]]
    assert world.transactions[0] == [LeaseAcquired(partition=0, worker="w", build="test")]
    assert world.lane.marker is world.transactions[0][0]


async def test_what_is_ready_goes_into_one_transaction(world: World) -> None:
    await owning(world)
    for name in "abc":
        world.lane.submit(event(name))
    await world.until(lambda: len(world.transactions) == 2)
    assert world.names()[1] == ["a", "b", "c"]


async def test_the_next_transaction_waits_for_the_echo_not_for_the_acknowledgement(world: World) -> None:
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    world.lane.submit(event("b"))
    world.lane.submit(event("c"))
    await some_ticks()
    assert world.names()[1:] == [["a"]], "acknowledged, not read back"
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names()[1:] == [["a"], ["b", "c"]]


async def test_a_transaction_stays_below_a_megabyte(world: World) -> None:
    await owning(world)
    for _ in range(5):
        world.lane.submit(large(250_000))
    await world.until(lambda: sum(map(len, world.transactions)) == 6)
    assert [len(events) for events in world.transactions[1:]] == [3, 2]


async def test_an_event_larger_than_that_goes_alone(world: World) -> None:
    await owning(world)
    for one in (event("a"), large(1_500_000), event("b")):
        world.lane.submit(one)
    await world.until(lambda: sum(map(len, world.transactions)) == 4)
    assert [len(events) for events in world.transactions[1:]] == [1, 1, 1]


async def test_what_is_in_no_transaction_yet_can_be_taken_back(world: World) -> None:
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    for name in "bc":
        world.lane.submit(event(name))
    taken = world.lane.withdraw(lambda one: one == event("b") or one == event("a"))
    assert taken == [event("b")]
    assert not world.lane.idle
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names()[1:] == [["a"], ["c"]]
    await world.until(lambda: world.lane.idle)


def sized(size: int) -> list[OwnerEvent]:
    """Events with ``size`` characters wherever somebody outside decides how many there are."""
    text = "\u20ac" * size  # three bytes each
    owner: dict[str, Any] = {"run_id": RUN, "epoch": 0}
    step: dict[str, Any] = {**owner, "seq": 1, "attempt": 1}
    call: dict[str, Any] = {**step, "model_seq": 1, "tool_use_id": text}
    definition = AgentDefinition(
        name="a", model=text, max_tokens=1, system_json=text, tools_json=text, options_json=text, hash="0" * 64
    )
    return [
        RunStarted(**owner, definition=definition, deadline=0),
        ModelStepCompleted(
            **step,
            content_json=text,
            stop_reason="x" * LONGEST,
            stop_details_json=text,
            usage=Usage(),
            cost=None,
            model="x" * LONGEST,
            message_id="x" * LONGEST,
            request_id="x" * LONGEST,
            latency_ms=0,
        ),
        ToolStepStarted(
            **call,
            name=text,
            input_json=text,
            idempotency_key=f"{RUN}/1/{text}",
            side_effect=SideEffect.NONE,
            repeatable=True,
        ),
        ToolStepFinished(**call, status=ToolStatus.DONE, content_json=text, latency_ms=0),
        RunSuspended(**owner, reason=Reason.BUDGET, detail=text[:LONGEST], tool_use_id=text),
        RunFinished(
            **owner,
            status=Status.FAILED,
            reason=Reason.CONFIG,
            detail=text[:LONGEST],
            output=text,
            command_id=text[:LONGEST],
            steps=0,
            usage=Usage(),
            cost=None,
        ),
        CommandRejected(**owner, command_id=text, reason=Rejection.RUN_FINISHED),
        RunResumed(**owner, command_id=text, token_budget=None, cost_ceiling=None, max_steps=None),
    ]


@pytest.mark.parametrize("size", [0, 1_000, 50_000])
def test_an_event_never_weighs_less_than_its_bytes(size: int) -> None:
    for one in sized(size):
        assert len(Codec().encode(one)) <= weight(one), type(one).__name__


# ---- the position


async def test_a_position_that_moved_without_any_event_is_written_on_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.05)
    await owning(world)
    world.next = 77
    world.lane.moved()
    await world.until(lambda: world.names() == [["marker"], []])
    assert world.broker.partitions[0].position.next == 77


async def test_a_trickle_of_such_moves_does_not_put_it_off_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.1)
    await owning(world)
    async with asyncio.timeout(PATIENCE):
        while len(world.transactions) < 2:
            world.next += 1
            world.lane.moved()
            await asyncio.sleep(0.01)
    assert world.names() == [["marker"], []]


async def test_a_position_that_stands_still_is_not_written_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.02)
    await owning(world)
    await world.until(lambda: len(world.transactions) == 2)  # the marker itself moved it
    for _ in range(5):
        world.lane.moved()
        await asyncio.sleep(0.03)
    assert world.names() == [["marker"], []]


# ---- errors: one way back


async def test_after_an_error_what_was_under_way_is_forgotten_and_the_partition_taken_over_again(world: World) -> None:
    await owning(world)
    world.broker.before_commit = failing(lambda: LogUnavailable("no answer"))
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert world.lane.idle, "the owner knows better, from the log"
    await world.until(lambda: len(world.transactions) == 2)
    assert world.names() == [["marker"], ["marker"]]
    assert world.transactions[0][0] is not world.transactions[1][0]
    assert world.broker.partitions[0].epoch == 2
    assert [type(error) for error in world.notes.resets] == [LogUnavailable]


async def test_a_commit_that_is_not_read_back_is_uncertain(world: World) -> None:
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert "not read back" in str(world.errors[0])
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names() == [["marker"], ["a"], ["marker"]]


async def test_other_records_are_no_echo(world: World) -> None:
    """A commit that was acknowledged and lost, while commands keep coming: they must not keep the lane waiting for ever."""
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    async with asyncio.timeout(PATIENCE):
        while not world.errors:
            world.lane.heard += 1  # a record that was read
            await asyncio.sleep(0.01)
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert isinstance(world.errors[0], LogUnavailable)


async def test_a_long_fold_is_no_silence(world: World) -> None:
    """The marker stands behind more records than can be read in the time that an echo may take."""
    for _ in range(200):
        world.broker.put(0, RUN.encode(), None)

    async def slowly() -> None:
        async for batch in await world.log.read(0, 0):
            for delivery in batch:
                await asyncio.sleep(0.003)
                world.next = delivery.offset + 1
                if isinstance(delivery, Record):
                    world.lane.read_back(delivery.event)
                else:
                    world.lane.heard += 1
            world.lane.moved()
            world.note()

    world._read = slowly  # type: ignore[method-assign]
    began = time.monotonic()
    world.start()
    await world.until(lambda: bool(world.transactions) and world.lane.idle)
    assert time.monotonic() - began > world.resources.echo_seconds
    assert world.errors == []


async def test_a_fenced_owner_waits_for_a_grant_that_is_younger_than_two_heartbeats_after_the_error(world: World) -> None:
    await owning(world)
    other = await MemoryLog(world.broker).fence(0)
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert isinstance(world.errors[0], Fenced)
    failed = time.monotonic()
    epoch = world.broker.partitions[0].epoch
    world.grant(at=failed + 1.5 * BEAT)
    await some_ticks()
    assert world.broker.partitions[0].epoch == epoch, "else two live owners fence each other for ever"
    world.grant(at=failed + 2 * BEAT + 0.001)
    await world.until(lambda: len(world.transactions) == 2)
    other.drop()


async def test_an_expelled_owner_waits_for_another_proof_than_the_refused_one(world: World) -> None:
    await owning(world)
    world.broker.group.leave("me")
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert isinstance(world.errors[0], Expelled)
    epoch = world.broker.partitions[0].epoch
    world.grant(proof=world.errors[0].proof)
    world.grant(proof=b"")
    await some_ticks()
    assert world.broker.partitions[0].epoch == epoch
    world.broker.group.join("me")
    world.grant()
    await world.until(lambda: len(world.transactions) == 2)


async def test_no_grant_no_takeover(world: World) -> None:
    await owning(world)
    world.broker.before_commit = failing(lambda: LogUnavailable("no answer"))
    world.grant(partitions=frozenset())
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    await asyncio.sleep(0.2)
    assert len(world.transactions) == 1
    world.grant(partitions=frozenset(), leaving=frozenset({0}))
    await world.until(lambda: len(world.transactions) == 2)  # what is being drained is still ours


async def test_it_backs_off_while_the_broker_is_away_and_not_after(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "BACKOFF_SECONDS", (0.01, 0.04))
    times: list[float] = []
    world.resources.observer.reset = lambda partition, error: times.append(time.monotonic())  # type: ignore[method-assign]
    world.broker.stop()
    world.start()
    await world.until(lambda: len(times) == 6)
    gaps = [round(after - before, 3) for before, after in pairwise(times)]
    assert gaps[0] >= 0.01
    assert gaps[2] >= 0.04
    world.broker.start()
    await world.until(lambda: len(world.transactions) == 1)
    await world.until(lambda: world.lane.idle)
    world.broker.before_commit = failing(lambda: LogUnavailable("no answer"))
    began = time.monotonic()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2 and world.lane.idle)
    assert time.monotonic() - began < 5
    await some_ticks()
    assert world.lane._backoff == 0.01, "one marker read back, and it starts from the beginning"


async def test_an_owner_that_is_cancelled_writes_nothing_more(world: World) -> None:
    await owning(world)
    entered = asyncio.Event()

    async def hang(partition: int, events: Sequence[OwnerEvent]) -> None:
        entered.set()
        await asyncio.Event().wait()

    world.broker.before_commit = hang
    world.lane.submit(event("a"))
    await entered.wait()
    world._tasks[0].cancel()
    with suppress(asyncio.CancelledError):
        await world._tasks[0]
    await MemoryLog(world.broker).fence(0)
    visible = list(world.broker.partitions[0].visible(0))
    assert len(visible) == 1, "the marker; what was open is aborted by whoever fences next"
