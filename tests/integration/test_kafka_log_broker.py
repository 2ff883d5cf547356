"""The Kafka log and a broker that dies, or falls silent, under load."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from runfold.config import Settings
from runfold.core.errors import Expelled, LogError, LogUnavailable
from runfold.local import Kafka
from runfold.log.kafka import create_topic
from runfold.log.kafka import pulse as pulse_module
from runfold.log.kafka.pulse import ANSWER_SECONDS, PULSE_SECONDS, Pulse
from runfold.ports import Appender, Log, Position, Reading
from tests.cases.harness_processes import slowness
from tests.contract.log_suite import PARTITIONS, Seat, command, events, marker, names, read_to_marker, run_on, take
from tests.contract.log_worlds import KafkaWorld, kafka_world

SILENCE_SECONDS = ANSWER_SECONDS + 2 * PULSE_SECONDS  # at least one question was not answered


@pytest.fixture
async def world(broker: Kafka) -> AsyncIterator[KafkaWorld]:
    async with kafka_world(broker.bootstrap) as world:
        yield world


class Follower:
    """Reads one partition from its beginning, for as long as it is let."""

    def __init__(self, reading: Reading) -> None:
        self.seen: list[str] = []
        self._reading = reading
        self._read = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def until(self, name: str, seconds: float) -> None:
        """Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while name not in self.seen[-100:]:
                self._read.clear()
                await self._read.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._reading.close()

    async def _follow(self) -> None:
        async for batch in self._reading:
            self.seen += names(batch)
            self._read.set()


class Writer:
    """Appends to one partition as fast as it goes, over every failure, and remembers what was acknowledged and read back.

    As a lane does, it begins the next transaction when it has read the last one: see docs/decisions/lane-after-echo.md.
    """

    def __init__(self, log: Log, partition: int, seat: Seat, follower: Follower) -> None:
        self._log, self._partition, self._seat, self._follower = log, partition, seat, follower
        self.echoed: list[list[str]] = []
        self.failures: list[LogError] = []
        self.progress = asyncio.Event()
        self._number = 0

    async def run(self) -> None:
        while True:
            try:
                await self._append(await self._log.fence(self._partition))
            except LogError as error:
                self.failures.append(error)
                with suppress(TimeoutError):  # rejoining may wait for the old session, longer than a test would
                    await self._other_proof(error)

    async def _append(self, appender: Appender) -> None:
        while True:
            self._number += 1
            batch = [f"{self._partition}.{self._number}.{k}" for k in range(5)]
            await appender.append(events(self._partition, batch), Position(next=self._number, low=0), self._seat.proof)
            await self._echo(batch, appender)
            self.echoed.append(batch)
            self.progress.set()

    async def _echo(self, batch: list[str], appender: Appender) -> None:
        try:
            await self._follower.until(batch[-1], seconds=2)
        except TimeoutError:
            appender.drop()
            raise LogUnavailable("acknowledged, and not read back in time; fence again") from None

    async def _other_proof(self, error: LogError) -> None:
        if isinstance(error, Expelled):
            await self._seat.until(lambda: self._seat.proof not in (b"", error.proof))
        else:
            await asyncio.sleep(0.05)

    async def go_on(self, appends: int) -> None:
        target = len(self.echoed) + appends
        async with asyncio.timeout(60 * slowness()):
            while len(self.echoed) < target:
                self.progress.clear()
                await self.progress.wait()


async def test_kill_9_of_the_broker_under_load_loses_nothing_that_was_read_back_and_stops_nobody(
    world: KafkaWorld, broker: Kafka, capfd: pytest.CaptureFixture[str]
) -> None:
    seat, log = await world.seat(), await world.log()
    await seat.owning(PARTITIONS)
    followers = [Follower(await log.read(partition, 0)) for partition in range(PARTITIONS)]
    writers = [Writer(log, partition, seat, follower) for partition, follower in enumerate(followers)]
    running = [asyncio.create_task(writer.run()) for writer in writers]
    lag = asyncio.create_task(_largest_lag())
    for _ in range(2):
        await asyncio.gather(*(writer.go_on(30) for writer in writers))
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
    await asyncio.gather(*(writer.go_on(30) for writer in writers))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert all(writer.failures for writer in writers), "each appender noticed"
    for partition, (writer, follower) in enumerate(zip(writers, followers, strict=True)):
        await _append_marker(await log.fence(partition), partition, seat)
        await follower.until("enough", seconds=30)
        await follower.stop()
        again = names(await read_to_marker(await world.log(), partition, seat.proof))
        assert again[: len(follower.seen)] == follower.seen, "the reader that lived through it missed nothing"
        _check_present_once(follower.seen, writer.echoed)
    lag.cancel()
    assert await lag < 0.5, "nothing blocked the loop"
    assert capfd.readouterr().err == "", "the client library wrote past our logs"


async def _append_marker(appender: Appender, partition: int, seat: Seat) -> None:
    await appender.append([marker(partition, "enough")], Position(), seat.proof)


def _check_present_once(seen: list[str], echoed: list[list[str]]) -> None:
    assert len(seen) == len(set(seen)), "nothing twice"
    place = {name: at for at, name in enumerate(seen)}
    for batch in echoed:
        at = place[batch[0]]
        assert seen[at : at + len(batch)] == batch
    wholes = [name for name in seen if name.endswith(".0")]
    assert len(wholes) * 5 == len(seen) - 1, "other appends are whole, too"


async def _largest_lag() -> float:
    largest = 0.0
    try:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            largest = max(largest, time.monotonic() - before - 0.01)
    except asyncio.CancelledError:
        return largest


async def test_every_call_to_a_silent_broker_ends_in_time(world: KafkaWorld, broker: Kafka) -> None:
    seat, log, tail, commands = await world.seat(), await world.log(), await world.tail(), await world.commands()
    proof = await seat.owning(PARTITIONS)
    appender = await log.fence(0)
    await appender.append(events(0, ["before"]), Position(), proof)
    reading = await log.read(0, 0)
    assert names(await take(reading, 1)) == ["before"]
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        run_id = run_on(1)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: appender.append(events(0, ["into silence"]), Position(), proof),
            lambda: log.fence(1),
            lambda: log.position(1),
            lambda: tail.records(run_id, 0),
            lambda: tail.behind({}),
            lambda: commands.send(command(run_id)),
        ]
        took = await asyncio.gather(*map(_seconds_to_fail, calls))
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    print(took)
    assert max(took) < 13
    follower = Follower(reading)
    writer = Writer(log, 0, seat, follower)
    running = asyncio.create_task(writer.run())
    await writer.go_on(1)
    running.cancel()
    await asyncio.wait([running])
    await follower.stop()
    assert writer.echoed[0][0] in follower.seen, "the reading goes on"
    assert set(follower.seen) <= {"into silence", *(f"0.{number}.{k}" for number in range(1, 99) for k in range(5))}


def test_the_silence_of_a_broker_is_heard_although_nothing_is_owing(broker: Kafka) -> None:
    """By one that reads, and by one that stands by."""
    settings = Settings(bootstrap=broker.bootstrap, topic="pulse")
    create_topic(settings, PARTITIONS)
    pulses = [Pulse(settings, lambda: range(PARTITIONS)), Pulse(settings, tuple)]
    began = time.monotonic()
    _until(lambda: all(pulse.heard_at > began for pulse in pulses))
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        _until(lambda: all(time.monotonic() - pulse.heard_at > SILENCE_SECONDS for pulse in pulses))
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    again = time.monotonic()
    _until(lambda: all(pulse.heard_at > again for pulse in pulses))
    for pulse in pulses:
        pulse.close()


def test_what_is_amiss_with_one_question_does_not_keep_the_next_from_being_asked(
    broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse_module, "AMISS_SECONDS", 0.05)
    settings = Settings(bootstrap=broker.bootstrap, topic="amiss")
    create_topic(settings, PARTITIONS)
    first = iter([True])

    def partitions() -> range:
        if next(first, False):
            raise RuntimeError("the test says so")
        return range(PARTITIONS)

    pulse, began = Pulse(settings, partitions), time.monotonic()
    _until(lambda: pulse.heard_at > began)
    assert pulse.ends == dict.fromkeys(range(PARTITIONS), 0)
    pulse.close()


def _until(true: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + 20, threading.Event()
    while not true():
        assert time.monotonic() < deadline
        pause.wait(0.02)


async def _seconds_to_fail(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    with pytest.raises(LogUnavailable):
        await call()
    return time.monotonic() - began
