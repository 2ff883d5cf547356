"""The append path of a partition after an error: the one way back, whatever it was (`runfold.worker.lane`)."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest

from runfold.core.errors import Expelled, Fenced, LogUnavailable
from runfold.core.events import OwnerEvent, Record
from runfold.log.memory import MemoryLog
from runfold.worker import lane as lane_module
from tests.unit.lane_world import BEAT, ECHO, PATIENCE, RUN, World, event, failing, opened, owning, some_ticks


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as world:
        yield world


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
    world.resources.echo_seconds = ECHO
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert "not read back" in str(world.errors[0])
    world.resources.echo_seconds = PATIENCE
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names() == [["marker"], ["a"], ["marker"]]


async def test_other_records_are_no_echo(world: World) -> None:
    """A commit that was acknowledged and lost, while commands keep coming: they must not keep the lane waiting for ever."""
    await owning(world)
    world.resources.echo_seconds = ECHO
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    async with asyncio.timeout(PATIENCE):
        while not world.errors:
            world.lane.heard += 1  # a record that was read
            await asyncio.sleep(0.01)
    world.resources.echo_seconds = PATIENCE
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

    world.read = slowly  # type: ignore[method-assign]
    world.resources.echo_seconds = ECHO
    began = time.monotonic()
    world.start()
    await world.until(lambda: bool(world.transactions) and world.lane.idle)
    assert time.monotonic() - began > world.resources.echo_seconds
    assert world.errors == []


async def test_a_fenced_owner_waits_for_a_grant_that_is_younger_than_two_heartbeats_after_the_error(world: World) -> None:
    await owning(world)
    other = await MemoryLog(world.broker).fence(0)
    before = time.monotonic()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.errors) == 1)
    assert isinstance(world.errors[0], Fenced)
    failed = time.monotonic()
    epoch = world.broker.partitions[0].epoch
    world.grant(at=before + 2 * BEAT - 0.001)
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
    world.tasks[0].cancel()
    with suppress(asyncio.CancelledError):
        await world.tasks[0]
    await MemoryLog(world.broker).fence(0)
    visible = list(world.broker.partitions[0].visible(0))
    assert len(visible) == 1, "the marker; what was open is aborted by whoever fences next"
