"""The Kafka log and a broker that dies, or falls silent, under load."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from runfold.core.errors import Expelled, LogError, LogUnavailable
from runfold.local import Kafka
from runfold.ports import Appender, Log, Position
from tests.contract.log_suite import PARTITIONS, Seat, collect, command, events, marker, names, read_to_marker, run_on, take
from tests.contract.log_worlds import KafkaWorld, kafka_world


@pytest.fixture
async def world(broker: Kafka) -> AsyncIterator[KafkaWorld]:
    async with kafka_world(broker.bootstrap) as world:
        yield world


class Writer:
    """Appends to one partition as fast as it goes, over every failure, and remembers what was acknowledged."""

    def __init__(self, log: Log, partition: int, seat: Seat) -> None:
        self._log, self._partition, self._seat = log, partition, seat
        self.acknowledged: list[list[str]] = []
        self.failures: list[LogError] = []
        self.progress = asyncio.Event()
        self._number = 0

    async def run(self) -> None:
        while True:
            try:
                await self._append(await self._log.fence(self._partition))
            except LogError as error:
                self.failures.append(error)
                await self._other_proof(error)

    async def _append(self, appender: Appender) -> None:
        while True:
            self._number += 1
            batch = [f"{self._partition}.{self._number}.{k}" for k in range(5)]
            await appender.append(events(self._partition, batch), Position(next=self._number, low=0), self._seat.proof)
            self.acknowledged.append(batch)
            self.progress.set()

    async def _other_proof(self, error: LogError) -> None:
        if isinstance(error, Expelled):
            await self._seat.until(lambda: self._seat.proof not in (b"", error.proof))
        else:
            await asyncio.sleep(0.05)

    async def go_on(self, appends: int) -> None:
        target = len(self.acknowledged) + appends
        async with asyncio.timeout(60):
            while len(self.acknowledged) < target:
                self.progress.clear()
                await self.progress.wait()


async def test_kill_9_of_the_broker_under_load_loses_no_acknowledged_append_and_stops_nobody(
    world: KafkaWorld, broker: Kafka, capfd: pytest.CaptureFixture[str]
) -> None:
    seat, log = await world.seat(), await world.log()
    await seat.owning(PARTITIONS)
    writers = [Writer(log, partition, seat) for partition in range(PARTITIONS)]
    readers = [asyncio.create_task(_read_all(log, partition)) for partition in range(PARTITIONS)]
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
    for partition, (writer, reader) in enumerate(zip(writers, readers, strict=True)):
        await _append_marker(await log.fence(partition), partition, seat)
        seen = await reader
        again = names(await read_to_marker(await world.log(), partition, seat.proof))
        assert again[: len(seen)] == seen, "the reader that lived through it missed nothing"
        _check_present_once(seen, writer.acknowledged)
    lag.cancel()
    assert await lag < 0.5, "nothing blocked the loop"
    assert capfd.readouterr().err == "", "the client library wrote past our logs"


async def _append_marker(appender: Appender, partition: int, seat: Seat) -> None:
    await appender.append([marker(partition, "enough")], Position(), seat.proof)


async def _read_all(log: Log, partition: int) -> list[str]:
    seen: list[str] = []
    async for batch in await log.read(partition, 0):
        seen += names(batch)
        if seen[-1] == "enough":
            return seen
    raise AssertionError("the reading ended")


def _check_present_once(seen: list[str], acknowledged: list[list[str]]) -> None:
    assert len(seen) == len(set(seen)), "nothing twice"
    place = {name: at for at, name in enumerate(seen)}
    for batch in acknowledged:
        at = place[batch[0]]
        assert seen[at : at + len(batch)] == batch
    wholes = [name for name in seen if name.endswith(".0")]
    assert len(wholes) * 5 == len(seen) - 1, "unacknowledged appends are whole, too"


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
    writer = Writer(log, 0, seat)
    running = asyncio.create_task(writer.run())
    await writer.go_on(1)
    running.cancel()
    await asyncio.wait([running])
    last = writer.acknowledged[-1][-1]
    seen = names(await collect(reading, lambda got: last in names(got)))
    assert seen[0] in ("into silence", writer.acknowledged[0][0]), "the append is there or not; the reading goes on"


async def _seconds_to_fail(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    with pytest.raises(LogUnavailable):
        await call()
    return time.monotonic() - began
