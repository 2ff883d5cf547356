"""What the memory broker can do wrong on demand, so that tests of the engine can rely on it."""

import asyncio
from collections.abc import Sequence

import pytest

from runfold.core.errors import Expelled, Fenced, LogUnavailable
from runfold.core.events import OwnerEvent, Record
from runfold.log import appending
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryMembership
from runfold.ports import Position
from tests.contract.log_suite import command, event, events, names, read_to_marker, run_on, take


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(4, clock=lambda: 1234)


@pytest.fixture
def proof(broker: MemoryBroker) -> bytes:
    return joined(broker).proof


def joined(broker: MemoryBroker) -> MemoryMembership:
    member = MemoryMembership(broker.group)
    member.join(lambda partitions: None)
    member.poll(0)
    return member


async def lose_the_answer(partition: int, events: Sequence[OwnerEvent]) -> None:
    raise LogUnavailable("the connection broke")


async def never(partition: int, events: Sequence[OwnerEvent]) -> None:
    await asyncio.Event().wait()


async def nothing(partition: int, events: Sequence[OwnerEvent]) -> None:
    pass


async def test_an_append_whose_answer_is_lost_before_the_commit_is_aborted_by_the_next_fence(
    broker: MemoryBroker, proof: bytes
) -> None:
    log, broker.before_commit = MemoryLog(broker), lose_the_answer
    with pytest.raises(LogUnavailable):
        await (await log.fence(0)).append(events(0, ["a"]), Position(1, 1), proof)
    broker.before_commit = nothing
    assert await log.position(0) == Position()
    assert names(await read_to_marker(log, 0, proof)) == []


async def test_an_append_whose_answer_is_lost_after_the_commit_is_there_with_its_position(
    broker: MemoryBroker, proof: bytes
) -> None:
    log, broker.after_commit = MemoryLog(broker), lose_the_answer
    sent = events(0, ["a"])
    with pytest.raises(LogUnavailable):
        await (await log.fence(0)).append(sent, Position(1, 1), proof)
    broker.after_commit = nothing
    assert await log.position(0) == Position(1, 1)
    (got,) = await read_to_marker(log, 0, proof)
    assert isinstance(got, Record)
    assert got.event is sent[0]
    assert got.timestamp == 1234


async def test_a_commit_that_hangs_ends_in_time_and_holds_readers_back_until_the_fence(
    broker: MemoryBroker, proof: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "APPEND_SECONDS", 0.01)
    log, broker.before_commit = MemoryLog(broker), never
    appender, reading = await log.fence(0), await log.read(0, 0)
    with pytest.raises(LogUnavailable):
        await appender.append(events(0, ["hangs"]), Position(), proof)
    await MemoryCommands(broker).send(command(run_on(0), "behind"))
    waiting = asyncio.create_task(take(reading, 1))
    assert (await asyncio.wait([waiting], timeout=0.02))[0] == set(), "nothing is seen behind an open transaction"
    await log.fence(0)
    assert names(await waiting) == ["behind"]


async def test_a_dropped_append_ends_at_once(broker: MemoryBroker, proof: bytes) -> None:
    log, broker.before_commit = MemoryLog(broker), never
    appender = await log.fence(0)
    append = asyncio.create_task(appender.append(events(0, ["hangs"]), Position(), proof))
    await asyncio.sleep(0)
    appender.drop()
    with pytest.raises(LogUnavailable):
        await append


async def test_a_fence_that_comes_in_mid_append_makes_it_invisible(broker: MemoryBroker, proof: bytes) -> None:
    log, other = MemoryLog(broker), MemoryLog(broker)

    async def fence(partition: int, events: Sequence[OwnerEvent]) -> None:
        await other.fence(partition)

    broker.before_commit = fence
    with pytest.raises(Fenced):
        await (await log.fence(0)).append(events(0, ["a"]), Position(1, 1), proof)
    broker.before_commit = nothing
    assert names(await read_to_marker(other, 0, proof)) == []
    assert await other.position(0) == Position()


async def test_a_rebalance_in_mid_append_expels(broker: MemoryBroker, proof: bytes) -> None:
    async def rebalance(partition: int, events: Sequence[OwnerEvent]) -> None:
        joined(broker)

    log, broker.before_commit = MemoryLog(broker), rebalance
    with pytest.raises(Expelled):
        await (await log.fence(0)).append(events(0, ["a"]), Position(1, 1), proof)


async def test_markers_that_come_late_hide_what_is_committed_until_then_or_until_a_fence(
    broker: MemoryBroker, proof: bytes
) -> None:
    log, broker.marker_delay = MemoryLog(broker), 0.02
    appender, reading = await log.fence(0), await log.read(0, 0)
    for name in ("a", "b"):
        await appender.append(events(0, [name]), Position(), proof)
    assert names(await take(reading, 1)) == ["a"]
    assert names(await take(reading, 1)) == ["b"]
    broker.marker_delay = 3600
    await appender.append(events(0, ["c"]), Position(), proof)
    await log.fence(0)
    assert names(await take(reading, 1)) == ["c"], "a prepared transaction is completed, not aborted"


async def test_a_stopped_broker_answers_nobody_and_forgets_nothing(broker: MemoryBroker, proof: bytes) -> None:
    log = MemoryLog(broker)
    appender = await log.fence(0)
    await appender.append(events(0, ["a"]), Position(), proof)
    broker.stop()
    reading = await log.read(0, 0)
    for call in (appender.append(events(0, ["b"]), Position(), proof), log.fence(1), log.position(0)):
        with pytest.raises(LogUnavailable):
            await call
    waiting = asyncio.create_task(take(reading, 1))
    assert (await asyncio.wait([waiting], timeout=0.02))[0] == set()
    broker.start()
    assert names(await waiting) == ["a"]


async def test_a_member_whose_session_ran_out_owns_nothing_after_its_next_poll_and_let_nothing_go(broker: MemoryBroker) -> None:
    member, revoked = MemoryMembership(broker.group), list[frozenset[int]]()
    member.join(revoked.append)
    member.poll(0)
    before = member.proof
    member.expire()
    other = joined(broker)
    assert len(other.owned) == 4
    member.poll(0)
    assert member.owned == frozenset()
    assert revoked == []
    assert member.proof != before


async def test_what_the_group_wants_back_while_a_member_lets_other_partitions_go_is_let_go_too(broker: MemoryBroker) -> None:
    member, revoked = MemoryMembership(broker.group), list[frozenset[int]]()

    def letting_go(partitions: frozenset[int]) -> None:
        revoked.append(partitions)
        if len(revoked) == 1:
            broker.group.join("third")
            broker.group.join("fourth")

    member.join(letting_go)
    member.poll(0)
    broker.group.join("second")
    member.poll(0)
    member.poll(0)
    assert member.owned == broker.group.target(member._name)
    assert frozenset().union(*revoked) == frozenset(range(4)) - member.owned


async def test_the_same_calls_give_the_same_log() -> None:
    async def history() -> list[object]:
        broker = MemoryBroker(1, clock=lambda: 7)
        log, proof = MemoryLog(broker), joined(broker).proof
        for n in range(3):
            appender = await log.fence(0)
            await appender.append([event("6f1c0a52-0000-4000-8000-000000000000", str(n))], Position(n, n), proof)
        return [(stored.raw, stored.transaction and stored.transaction.state) for stored in broker.partitions[0].visible(0)]

    assert await history() == await history()
