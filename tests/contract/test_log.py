"""The contract of `runfold.ports.Log`, run against every implementation."""

import asyncio
import random
import threading
import time

import pytest

from runfold.core.errors import Expelled, Fenced, LogError, TooLarge
from runfold.core.events import Problem, Record, Unreadable
from runfold.log.codec import Codec
from runfold.log.wire import LONGEST_DETAIL
from runfold.ports import Position
from tests.contract.log_suite import (
    PATIENCE,
    World,
    collect,
    command,
    event,
    events,
    marker,
    names,
    read_to_marker,
    run_on,
    take,
    until_marked,
)

UNJOINED = b"CGMDv2:" + (-1).to_bytes(4, "little", signed=True) + b"group\0\0\0"


# ---- appending and reading back


async def test_what_is_appended_is_read_back_in_order_with_the_brokers_offsets_and_times(world: World, proof: bytes) -> None:
    log, before = await world.log(), time.time() * 1000
    appender, reading = await log.fence(1), await log.read(1, 0)
    for batch in (["a"], ["b", "c", "d"], ["e", "f"]):
        await appender.append(events(1, batch), Position(), proof)
    got = await take(reading, 6)
    assert names(got) == list("abcdef")
    offsets, times = [delivery.offset for delivery in got], [delivery.timestamp for delivery in got]
    assert offsets == sorted(set(offsets))
    assert offsets[3] - offsets[1] == 2, "one append is contiguous"
    assert times == sorted(times)
    assert before - 1000 <= times[0] <= times[-1] <= time.time() * 1000 + 1000
    assert {delivery.partition for delivery in got} == {1}


async def test_own_events_come_back_as_the_very_objects_and_those_of_others_as_equal_ones(world: World, proof: bytes) -> None:
    mine, others = await world.log(), await world.log()
    appended = events(0, ["a", "b"])
    await (await mine.fence(0)).append(appended, Position(), proof)
    for log, same in ((mine, True), (others, False)):
        for got, sent in zip(await take(await log.read(0, 0), 2), appended, strict=True):
            assert isinstance(got, Record)
            assert got.event == sent
            assert (got.event is sent) == same


async def test_events_of_a_superseded_appender_come_back_as_the_very_objects_too(world: World, proof: bytes) -> None:
    log = await world.log()
    first = events(0, ["a"])
    await (await log.fence(0)).append(first, Position(), proof)
    appender = await log.fence(0)
    second = events(0, ["b"])
    await appender.append(second, Position(), proof)
    got = await take(await log.read(0, 0), 2)
    assert [delivery.event for delivery in got if isinstance(delivery, Record)] == first + second
    assert all(isinstance(d, Record) and d.event is e for d, e in zip(got, first + second, strict=True))


async def test_a_large_append_comes_back_whole_and_in_order(world: World, proof: bytes) -> None:
    log = await world.log()
    appender, reading = await log.fence(2), await log.read(2, 0)
    wanted = [str(n) for n in range(2000)]
    await appender.append(events(2, wanted), Position(), proof)
    assert names(await take(reading, 2000)) == wanted


async def test_an_append_that_is_too_large_is_refused_without_harm(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    with pytest.raises(TooLarge, match="split them"):
        await appender.append(events(0, ["x" * 1_500_000, "y" * 1_500_000]), Position(), proof)
    await appender.append(events(0, ["x" * 1_500_000]), Position(), proof)
    (got,) = await take(await log.read(0, 0), 1)
    assert got.offset == 0, "the refused one left nothing"


async def test_two_logs_of_one_process_see_each_others_records(world: World, proof: bytes) -> None:
    one, other = await world.log(), await world.log()
    readings = [await log.read(p, 0) for log in (one, other) for p in (0, 1)]
    await (await one.fence(0)).append(events(0, ["from one"]), Position(), proof)
    await (await other.fence(1)).append(events(1, ["from other"]), Position(), proof)
    assert [names(await take(reading, 1)) for reading in readings] == [["from one"], ["from other"]] * 2


async def test_reading_resumes_at_any_offset_also_at_one_that_a_marker_took(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(3)
    for batch in (["a"], ["b", "c"], ["d"]):
        await appender.append(events(3, batch), Position(), proof)
    reading = await log.read(3, 0)
    everything = await take(reading, 4)
    await reading.close()
    for offset in range(everything[-1].offset + 1):
        reading = await log.read(3, offset)
        wanted = [delivery for delivery in everything if delivery.offset >= offset]
        assert await take(reading, len(wanted)) == wanted
        await reading.close()


async def test_a_reading_counts_the_bytes_that_it_hands_over(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    await appender.append(events(0, ["x" * 1000, "y" * 1000]), Position(), proof)
    reading = await log.read(0, 0)
    assert reading.taken == 0
    await take(reading, 2)
    assert 2000 <= reading.taken < 5000


async def test_a_partition_has_one_reading_at_a_time(world: World) -> None:
    log = await world.log()
    reading = await log.read(0, 0)
    with pytest.raises(ValueError, match="close that reading"):
        await log.read(0, 0)
    await reading.close()
    await log.read(0, 0)


async def test_closing_a_reading_ends_the_iteration_that_waits(world: World) -> None:
    log = await world.log()
    reading = await log.read(0, 0)
    waiting = asyncio.create_task(collect(reading, lambda got: False))
    await asyncio.sleep(0)
    await reading.close()
    await reading.close()
    assert await waiting == []
    assert [batch async for batch in reading] == []


# ---- fences


async def test_a_second_fence_fences_the_first_appender(world: World, proof: bytes) -> None:
    one, other = await world.log(), await world.log()
    first = await one.fence(0)
    await first.append(events(0, ["before"]), Position(), proof)
    await other.fence(0)
    with pytest.raises(Fenced):
        await first.append(events(0, ["zombie"]), Position(), proof)
    assert names(await read_to_marker(other, 0, proof)) == ["before"]


async def test_a_fence_of_the_same_log_fences_its_own_first_appender(world: World, proof: bytes) -> None:
    log = await world.log()
    first, second = await log.fence(0), await log.fence(0)
    with pytest.raises(Fenced):
        await first.append(events(0, ["zombie"]), Position(), proof)
    await second.append(events(0, ["mine"]), Position(), proof)
    assert names(await take(await log.read(0, 0), 1)) == ["mine"]


async def test_a_fence_of_one_partition_leaves_the_others_alone(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    await log.fence(1)
    await appender.append(events(0, ["a"]), Position(), proof)


async def test_after_an_error_the_appender_is_dead(world: World, proof: bytes) -> None:
    one, other = await world.log(), await world.log()
    first = await one.fence(0)
    await other.fence(0)
    for _ in range(2):
        with pytest.raises(LogError):
            await first.append(events(0, ["zombie"]), Position(), proof)


async def test_a_dropped_appender_refuses_and_what_it_committed_stays(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    await appender.append(events(0, ["a"]), Position(), proof)
    appender.drop()
    appender.drop()
    with pytest.raises(LogError):
        await appender.append(events(0, ["b"]), Position(), proof)
    assert names(await read_to_marker(log, 0, proof)) == ["a"]


async def test_an_append_that_meets_a_fence_is_whole_or_invisible(world: World, proof: bytes) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, one, other = random.Random(seed), await world.log(), await world.log()
    acknowledged = 0
    for round_ in range(8):
        appender = await one.fence(0)
        batch = [f"{round_}.{n}" for n in range(50)]
        append = asyncio.create_task(appender.append(events(0, batch), Position(), proof))
        await asyncio.sleep(rng.uniform(0, 0.06))
        seen = [name for name in names(await read_to_marker(other, 0, proof)) if name in batch]
        (error,) = await asyncio.gather(append, return_exceptions=True)
        assert error is None or isinstance(error, LogError)
        assert seen in ([batch] if error is None else [batch, []])
        acknowledged += error is None
    print("acknowledged", acknowledged, "of 8")


async def test_what_a_killed_owner_left_open_is_never_seen_and_blocks_nothing_after_a_fence(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    await appender.append(events(0, ["committed"]), Position(next=7, low=3), proof)
    await world.hang(0, events(0, ["never", "never"]))
    run_id = run_on(0)
    await (await world.commands()).send(command(run_id, "behind it"))
    reading = await log.read(0, 0)
    assert names(await take(reading, 1)) == ["committed"]
    began = time.monotonic()
    appender = await log.fence(0)
    await appender.append([marker(0, "new owner")], Position(), proof)
    assert names(await until_marked(reading, "new owner")) == ["behind it"]
    assert time.monotonic() - began < PATIENCE, "a minute would end the transaction"


# ---- the group's offset


async def test_a_partition_without_appends_has_the_position_zero(world: World) -> None:
    log = await world.log()
    assert await log.position(2) == Position(next=0, low=0)


async def test_after_a_fence_the_position_is_the_newest(world: World, proof: bytes) -> None:
    log = await world.log()
    for n in range(1, 6):
        appender = await log.fence(0)
        await appender.append(events(0, ["a"]), Position(next=10 * n, low=n), proof)
        await log.fence(0)
        assert await log.position(0) == Position(next=10 * n, low=n)
    assert await log.position(1) == Position()


async def test_the_position_does_not_wait_for_what_a_killed_owner_left_open(world: World, proof: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    await appender.append(events(0, ["a"]), Position(next=7, low=3), proof)
    await log.fence(0)
    await world.hang(0, events(0, ["never"]), proof)
    async with asyncio.timeout(PATIENCE):  # a minute would end the transaction
        assert await log.position(0) == Position(next=7, low=3)


# ---- the group's generation


async def test_a_proof_of_an_older_generation_is_refused_and_nothing_becomes_visible(world: World) -> None:
    first = await world.seat()
    stale = await first.owning(4)
    second = await world.seat()
    fresh = await second.owning(2)
    await first.owning(2)
    log = await world.log()
    appender = await log.fence(0)
    with pytest.raises(Expelled) as refused:
        await appender.append(events(0, ["stale"]), Position(next=9, low=9), stale)
    assert refused.value.proof == stale
    assert names(await read_to_marker(log, 0, fresh)) == []


@pytest.mark.parametrize("unjoined", [b"", UNJOINED], ids=["none", "generation -1"])
async def test_the_proof_of_a_member_that_has_not_joined_is_never_sent(world: World, proof: bytes, unjoined: bytes) -> None:
    log = await world.log()
    appender = await log.fence(0)
    with pytest.raises(Expelled) as refused:
        await appender.append(events(0, ["unjoined"]), Position(next=9, low=9), unjoined)
    assert refused.value.proof == unjoined
    appender = await log.fence(0)
    assert await log.position(0) == Position()
    await appender.append(events(0, ["a"]), Position(), proof)
    (got,) = await take(await log.read(0, 0), 1)
    assert got.offset == 0, "no aborted record stands before it"


async def test_a_member_that_left_is_expelled(world: World) -> None:
    seat, other = await world.seat(), await world.seat()
    await seat.owning(2)
    proof = seat.proof
    await seat.leave()
    await other.owning(4)
    appender = await (await world.log()).fence(0)
    with pytest.raises(Expelled):
        await appender.append(events(0, ["left"]), Position(), proof)


# ---- what others write


async def test_commands_are_delivered_between_the_owners_events(world: World, proof: bytes) -> None:
    log, commands = await world.log(), await world.commands()
    appender, reading, run_id = await log.fence(0), await log.read(0, 0), run_on(0)
    for n in range(3):
        await commands.send(command(run_id, f"command {n}"))
        await appender.append([event(run_id, f"event {n}")], Position(), proof)
    assert names(await take(reading, 6)) == [f"{kind} {n}" for n in range(3) for kind in ("command", "event")]


async def test_unreadable_records_are_delivered_in_their_place(world: World) -> None:
    codec, here, there = Codec(), run_on(0), run_on(1)
    good = codec.encode(command(here, "good"))
    poison: list[tuple[bytes | None, bytes | None, bytes | None, Problem]] = [
        (here.encode(), None, None, Problem.NULL_VALUE),
        (None, None, None, Problem.NULL_VALUE),
        (None, good, None, Problem.NO_KEY),
        (there.encode(), good, None, Problem.WRONG_KEY),
        (here.upper().encode(), codec.encode(command(here.upper())), None, Problem.WRONG_KEY),
        (b"\xff\xfe", good, None, Problem.WRONG_KEY),
        (there.encode(), codec.encode(command(there)), None, Problem.MISROUTED),
        (there.encode(), codec.encode(event(there)), None, Problem.MISROUTED),
        (b"lease/1", codec.encode(marker(1)), None, Problem.MISROUTED),
        (b"lease/0", codec.encode(marker(1)), None, Problem.WRONG_KEY),
        (here.encode(), b"", None, Problem.MALFORMED),
        (here.encode(), b'{"input": "json"}', None, Problem.MALFORMED),
        (here.encode(), good[:-1], None, Problem.MALFORMED),
        (here.encode(), good + b"\0", None, Problem.MALFORMED),
        (here.encode(), b"\xc3\x01" + bytes(8) + good[10:], None, Problem.UNKNOWN_SCHEMA),
        (here.encode(), b"\xc3\x01" + bytes(8) + good[10:], b"RunTeleported", Problem.UNKNOWN_SCHEMA),
        (there.encode(), b"\xc3\x01" + bytes(8) + good[10:], None, Problem.MISROUTED),
        (here.encode(), good, b"RunTeleported", Problem.MALFORMED),
        (here.encode(), b"x", b"RunTeleported", Problem.MALFORMED),
    ]
    for key, value, type_header, _ in poison:
        await world.put(0, key, value, type_header)
    await world.put(0, here.encode(), good)
    got = await take(await (await world.log()).read(0, 0), len(poison) + 1)
    assert names(got) == ["good"]
    for delivery, (key, value, _, problem) in zip(got, poison, strict=False):
        assert isinstance(delivery, Unreadable), (delivery, problem)
        assert (delivery.key, delivery.value, delivery.problem) == (key, value, problem)
        assert delivery.detail
        assert delivery.timestamp > 0


async def test_a_dead_letter_keeps_where_it_came_from(world: World) -> None:
    log = await world.log()
    await world.put(2, None, b"rubbish")
    (got,) = await take(await log.read(2, 0), 1)
    assert isinstance(got, Unreadable)
    await log.dead_letter(got)
    assert await world.dead_letters() == [(2, 0, b"rubbish")]


@pytest.mark.parametrize("lies", ["type header", "run id in the value"])
async def test_whatever_cannot_be_read_fits_into_the_dead_letter_topic(world: World, lies: str) -> None:
    """Else its partition's position would stay for ever: what is wrong with it is told in a few words."""
    log, key = await world.log(), run_on(2).encode()
    much = "\0" * 600_000
    value = Codec().encode(command(much if lies == "run id in the value" else key.decode()))
    await world.put(2, key, value, much.encode() if lies == "type header" else None)
    (got,) = await take(await log.read(2, 0), 1)
    assert isinstance(got, Unreadable)
    assert len(got.detail) <= LONGEST_DETAIL
    await log.dead_letter(got)
    ((partition, offset, _),) = await world.dead_letters()
    assert (partition, offset) == (2, 0)


# ---- the end


async def test_close_leaves_no_task_and_no_thread(world: World, proof: bytes) -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    log = await world.log()
    appender, reading = await log.fence(0), await log.read(0, 0)
    await appender.append(events(0, ["a"]), Position(), proof)
    await log.position(0)
    waiting = asyncio.create_task(collect(reading, lambda got: False))
    await asyncio.sleep(0)
    await log.close()
    await log.close()
    await waiting
    for thread in set(threading.enumerate()) - threads:
        await asyncio.to_thread(thread.join, PATIENCE) if "asyncio" not in thread.name else None
    assert [t for t in threading.enumerate() if t not in threads and "asyncio" not in t.name] == []
    assert asyncio.all_tasks() == tasks
    with pytest.raises(LogError):
        await appender.append(events(0, ["b"]), Position(), proof)


async def test_the_partition_count_is_known(world: World) -> None:
    assert (await world.log()).partitions == 4
