"""The Kafka log where only Kafka can be asked: dead processes, members that hand over, places that are not in the log."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from runfold.config import Settings
from runfold.core.errors import Fenced, LogError, LogUnavailable, TooLarge, TopicMismatch
from runfold.core.events import Event, Problem, Unreadable
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLog, intake, reader
from runfold.ports import Position
from tests.contract.log_suite import PARTITIONS, PATIENCE, collect, command, events, names, read_to_marker, run_on, take
from tests.contract.log_worlds import KafkaWorld, kafka_world

OWNER = """
import asyncio, sys
from runfold.config import Settings
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLog
from runfold.ports import Position
from tests.contract.log_suite import events

async def main(settings, proof, life):
    log = await KafkaLog.open(Settings.model_validate_json(settings), Codec())
    appender = await log.fence(0)
    for n in range(10_000):
        await appender.append(events(0, [f"{life}.{n}.{k}" for k in range(20)]), Position(next=n, low=n), bytes.fromhex(proof))
        print(n, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def world(bootstrap: str) -> AsyncIterator[KafkaWorld]:
    async with kafka_world(bootstrap) as world:
        yield world


# ---- owners that die


async def test_an_owner_killed_at_any_moment_leaves_whole_appends_and_every_acknowledged_one(world: KafkaWorld) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, seat, log = random.Random(seed), await world.seat(), await world.log()
    proof, acknowledged = await seat.owning(4), {}
    for life in range(4):
        acknowledged[life] = await _live_and_die(world, proof, str(life), appends=rng.randrange(1, 30))
        began = time.monotonic()
        await log.fence(0)
        assert time.monotonic() - began < 2
    appends = _appends(names(await read_to_marker(log, 0, proof)))
    for life, acked in acknowledged.items():
        seen = appends[str(life)]
        assert seen in (list(range(acked + 1)), list(range(acked + 2))), "at most the last one had not been acknowledged"


async def _live_and_die(world: KafkaWorld, proof: bytes, life: str, appends: int) -> int:
    """The number of the last append that the process saw acknowledged before kill -9 hit it."""
    command = [sys.executable, "-c", OWNER, world.settings.model_dump_json(), proof.hex(), life]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        for _ in range(appends):
            await process.stdout.readline()
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
    return appends - 1 + len(rest.splitlines())


def _appends(seen: list[str]) -> dict[str, list[int]]:
    """By life: the numbers of the appends that were read, each of them whole."""
    appends: dict[str, list[int]] = {}
    for at in range(0, len(seen), 20):
        life, n, _ = seen[at].split(".")
        assert seen[at : at + 20] == [f"{life}.{n}.{k}" for k in range(20)]
        appends.setdefault(life, []).append(int(n))
    return appends


async def test_a_frozen_owner_that_wakes_up_is_fenced(world: KafkaWorld) -> None:
    seat, log = await world.seat(), await world.log()
    proof = await seat.owning(4)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, world.settings.model_dump_json(), proof.hex(), "frozen"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    before = len(await read_to_marker(log, 0, proof))
    process.send_signal(signal.SIGCONT)
    _, stderr = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert Fenced.__name__ in stderr.decode().splitlines()[-1]
    after = len(await read_to_marker(log, 0, proof)) - 1  # less the marker of before
    assert after == before


async def test_the_native_threads_of_a_failed_appender_end_at_once(world: KafkaWorld) -> None:
    proof, log, other = await (await world.seat()).owning(4), await world.log(), await world.log()
    appender = await log.fence(0)
    await other.fence(0)
    before = len(os.listdir("/proc/self/task"))
    with pytest.raises(Fenced) as fenced:
        await appender.append(events(0, ["zombie"]), Position(), proof)
    async with asyncio.timeout(PATIENCE):
        while len(os.listdir("/proc/self/task")) > before - 4:  # noqa: ASYNC110  # the system has no event for it
            await asyncio.sleep(0.01)
    assert fenced.value is not None, "the error is still held, its producer is not"


# ---- members


async def test_when_a_member_leaves_the_other_owns_everything_within_two_seconds(world: KafkaWorld) -> None:
    one, other = await world.seat(), await world.seat()
    await one.owning(2)
    await other.owning(2)
    began = time.monotonic()
    await one.leave()
    await other.owning(4)
    assert time.monotonic() - began < 2


async def test_a_partition_waits_for_the_member_that_is_letting_it_go(world: KafkaWorld) -> None:
    one = await world.seat()
    await one.owning(4)
    released: list[float] = []

    def letting_go(partitions: frozenset[int]) -> None:
        stop = time.monotonic() + 1.5
        while time.monotonic() < stop:
            assert one.membership.proof, "the proof is to be had while letting go: the worker commits until the end"
        released.append(time.monotonic())

    one.letting_go = letting_go
    other = await world.seat()
    await other.owning(2)
    assert time.monotonic() >= released[0]
    await one.owning(2)


# ---- places that are not in the log


async def test_reading_from_what_retention_took_begins_with_what_is_left(world: KafkaWorld, admin: AdminClient) -> None:
    run_id, codec, log = run_on(0), Codec(), await world.log()
    for n in range(5):
        await world.put(0, run_id.encode(), codec.encode(command(run_id, str(n))))
    (future,) = admin.delete_records([TopicPartition(world.settings.topic, 0, 3)]).values()
    await asyncio.to_thread(future.result, PATIENCE)
    assert names(await take(await log.read(0, 1), 2)) == ["3", "4"]


async def test_reading_from_behind_the_end_is_an_error_and_not_a_silent_wait(world: KafkaWorld) -> None:
    log = await world.log()
    reading, other = await log.read(0, 1000), await log.read(1, 0)
    with pytest.raises(LogError, match="lost records"):
        await collect(reading, lambda got: False)
    run_id = run_on(1)
    await (await world.commands()).send(command(run_id, "still read"))
    assert names(await take(other, 1)) == ["still read"]


async def test_without_the_topic_nothing_opens(world: KafkaWorld) -> None:
    missing = world.settings.model_copy(update={"topic": "no-such-topic"})
    with pytest.raises(TopicMismatch, match="runfold topic create"):
        await KafkaLog.open(missing, Codec())


async def test_without_a_broker_opening_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "OPEN_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(LogUnavailable, match="broker"):
        await KafkaLog.open(Settings(bootstrap="127.0.0.1:1"), Codec())
    assert time.monotonic() - began < 4


# ---- the reader


async def test_who_does_not_take_his_records_gets_no_more_than_fit_and_holds_nobody_up(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "FULL_BYTES", 100_000)
    log, commands, slow_run, quick_run = await world.log(), await world.commands(), run_on(0), run_on(1)
    slow, quick = await log.read(0, 0), await log.read(1, 0)
    assert hasattr(slow, "waiting")
    for start in range(0, 3000, 500):
        batch = [command(slow_run, str(n)) for n in range(start, start + 500)]
        await asyncio.gather(*map(commands.send, batch))
        await commands.send(command(quick_run, "quick"))
        assert names(await take(quick, 1)) == ["quick"]
    assert 100_000 / 700 - 1 < slow.waiting < 1500
    assert len(set(names(await take(slow, 3000)))) == 3000


async def test_a_record_that_needs_the_absent_registry_is_waited_for_and_keeps_its_place(world: KafkaWorld) -> None:
    class Away(Codec):
        asked = 0

        def decode(self, value: bytes, type_header: bytes | None = None) -> Event:
            event = super().decode(value, type_header)
            if getattr(event, "command_id", "") == "1" and self.asked < 2:
                self.asked += 1
                raise LogUnavailable("no registry")
            return event

    codec, run_id = Away(), run_on(0)
    for n in range(4):
        await world.put(0, run_id.encode(), codec.encode(command(run_id, str(n))))
    log = await KafkaLog.open(world.settings, codec)
    assert names(await take(await log.read(0, 0), 4)) == ["0", "1", "2", "3"]
    assert codec.asked == 2
    await log.close()


# ---- records that are too large


async def test_a_command_that_no_record_can_hold_is_refused_at_once_and_not_taken_for_an_outage(world: KafkaWorld) -> None:
    commands = await world.commands()
    with pytest.raises(TooLarge, match="nothing was written"):
        await commands.send(command(run_on(0), "x" * 3_000_000))


async def test_a_dead_letter_of_any_size_is_taken(world: KafkaWorld) -> None:
    log, huge = await world.log(), b"k" * 3_000_000
    await log.dead_letter(Unreadable(1, 7, 1, huge, huge, Problem.MALFORMED, "huge"))
    assert await world.dead_letters() == [(1, 7, huge[: 64 * 1024])]


async def test_an_owner_that_is_fenced_says_so_in_the_log_and_not_on_stderr(
    world: KafkaWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    """O9: off a terminal every line of our processes is JSON, and the client library knows nothing of that."""
    proof = await (await world.seat()).owning(PARTITIONS)
    stale = await (await world.log()).fence(1)
    await (await world.log()).fence(1)
    with pytest.raises(Fenced):
        await stale.append(events(1, ["a"]), Position(), proof)
    assert capfd.readouterr().err == ""
