"""The contract of `runfold.ports.Commands` and `runfold.ports.Tail`: what those do who own nothing."""

import asyncio
import time

import pytest

from runfold.log.codec import Codec
from runfold.ports import Position, Tail
from tests.contract.log_suite import PATIENCE, World, command, event, events, names, run_on, take


async def test_a_command_is_on_its_runs_partition_when_send_returns(world: World) -> None:
    commands, log = await world.commands(), await world.log()
    for partition in range(4):
        sent = command(run_on(partition))
        where = await commands.send(sent)
        (got,) = await take(await log.read(partition, 0), 1)
        assert where == (partition, got.offset)
        assert names([got]) == ["c"]


async def test_commands_sent_together_all_arrive(world: World) -> None:
    commands, log, run_id = await world.commands(), await world.log(), run_on(2)
    places = await asyncio.gather(*(commands.send(command(run_id, str(n))) for n in range(50)))
    assert len(set(places)) == 50
    got = await take(await log.read(2, 0), 50)
    assert sorted(names(got), key=int) == [str(n) for n in range(50)]


async def test_a_command_for_a_run_id_that_is_not_canonical_is_refused(world: World) -> None:
    commands, run_id = await world.commands(), run_on(0)
    for spelling in (run_id.upper(), run_id.replace("-", ""), f"{{{run_id}}}", f" {run_id}", ""):
        with pytest.raises(ValueError, match="canonical"):
            await commands.send(command(spelling))


async def test_the_tail_holds_the_records_of_one_run_up_to_the_end(world: World, proof: bytes) -> None:
    log, tail, run_id = await world.log(), await world.tail(), run_on(1)
    appender = await log.fence(1)
    for n in range(3):
        await appender.append([event(run_id, f"mine {n}"), *events(1, ["another's"])], Position(), proof)
    await take(await log.read(1, 0), 6)  # an acknowledged commit may be on its way to its partition
    records = await tail.records(run_id, 0)
    assert names(records) == ["mine 0", "mine 1", "mine 2"]
    for at, record in enumerate(records):
        assert await tail.records(run_id, record.offset) == records[at:]
        assert await tail.records(run_id, record.offset + 1) == records[at + 1 :]
    assert await tail.records(run_id, 10_000) == []
    assert await tail.records(run_on(1), 0) == []
    assert await tail.records(run_on(2), 0) == [], "an empty partition"


async def test_the_tail_knows_where_a_run_lives(world: World) -> None:
    tail = await world.tail()
    assert [tail.partition_of(run_on(partition)) for partition in range(4)] == [0, 1, 2, 3]


async def test_the_tail_shows_commands_behind_a_transaction_that_is_open_and_nothing_of_it(world: World, proof: bytes) -> None:
    log, tail, commands, run_id = await world.log(), await world.tail(), await world.commands(), run_on(0)
    await (await log.fence(0)).append([event(run_id, "committed")], Position(), proof)
    await world.hang(0, [event(run_id, "open")])
    _, offset = await commands.send(command(run_id, "behind"))
    async with asyncio.timeout(PATIENCE):  # a minute would end the transaction
        assert names(await tail.records(run_id, 0)) == ["committed", "behind"]
        assert names(await tail.records(run_id, offset)) == ["behind"]
        assert names(await tail.records(run_id, offset + 1)) == []
    await log.fence(0)
    async with asyncio.timeout(PATIENCE):  # a minute would end the transaction
        assert names(await tail.records(run_id, 0)) == ["committed", "behind"]


async def test_the_tail_passes_over_what_cannot_be_read(world: World) -> None:
    tail, run_id, codec = await world.tail(), run_on(0), Codec()
    await world.put(0, run_id.encode(), b"rubbish")
    await world.put(0, run_id.encode(), None)
    await world.put(0, run_id.encode(), codec.encode(command(run_id, "good")))
    assert names(await tail.records(run_id, 0)) == ["good"]


async def test_nobody_is_behind_at_any_end_a_partition_can_have(world: World, proof: bytes) -> None:
    """K05.2. Partition 0 ends in a commit marker, 1 in an aborted transaction, 2 is empty, 3 holds only an aborted one."""
    log, tail = await world.log(), await world.tail()
    reached: dict[int, int] = {}
    for partition in (0, 1):
        await (await log.fence(partition)).append(events(partition, ["a", "b"]), Position(), proof)
        reached[partition] = (await take(await log.read(partition, 0), 2))[-1].offset + 1
    for partition in (1, 3):
        await world.hang(partition, events(partition, ["never"]))
        assert await tail.behind(reached) == 0.0, "what is not committed cannot be reached yet"
        await log.fence(partition)
    assert await tail.behind(reached) == 0.0
    await until_behind(tail, 0.001)  # when nothing is named, everything is missing


async def test_behind_is_the_age_of_the_oldest_record_not_reached_whatever_comes_after_it(world: World, proof: bytes) -> None:
    log, tail = await world.log(), await world.tail()
    await (await log.fence(2)).append(events(2, ["old"]), Position(), proof)
    await until_behind(tail, 0.2)
    await (await log.fence(1)).append(events(1, ["new", "newer"]), Position(), proof)
    (old,), (new, newer) = [await take(await log.read(partition, 0), n) for partition, n in ((2, 1), (1, 2))]
    began = time.monotonic()
    ages = [await tail.behind(reached) for reached in ({}, {1: newer.offset + 1}, {1: newer.offset, 2: 1}, {2: 1})]
    took, apart = time.monotonic() - began + 0.01, (new.timestamp - old.timestamp) / 1000
    assert 0.2 <= ages[0] <= ages[1] < ages[0] + took
    assert ages[0] - apart - 0.01 <= ages[2] <= ages[3] < ages[0] - apart + took


async def until_behind(tail: Tail, seconds: float) -> None:
    async with asyncio.timeout(PATIENCE):
        while await tail.behind({}) < seconds:
            pass
