"""A worker's access to the memory broker: `runfold.ports.Log` and what it hands out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextvars import Context

from runfold.core.events import Delivery, Record, Unreadable
from runfold.log.appending import BoundedAppender, Outgoing
from runfold.log.echo import Echo, Lane
from runfold.log.memory.broker import MemoryBroker
from runfold.log.memory.partition import Partition, Stored, Transaction
from runfold.log.wire import read
from runfold.ports import Position


class MemoryAppender(BoundedAppender):
    """A `runfold.ports.Appender`."""

    def __init__(self, broker: MemoryBroker, partition: Partition, epoch: int, lane: Lane) -> None:
        super().__init__(partition.number, lane, broker.codec)
        self._broker, self._stored, self._epoch = broker, partition, epoch

    async def _commit(self, records: Sequence[Outgoing], position: Position, proof: bytes) -> None:
        """1. write, 2. the group agrees, 3. commit, 4. acknowledge. Whatever is raised between leaves things as they are then."""
        broker, stored, events = self._broker, self._stored, [record.event for record in records]
        await broker.request()
        stored.settle()
        transaction = stored.begin(self._epoch)
        stored.write(transaction, records, broker.clock())
        await broker.before_commit(stored.number, events)
        await broker.request()
        broker.check(proof)
        await broker.request()
        stored.prepare(self._epoch, transaction, position)
        self._settle(transaction, broker.marker_delay)
        await broker.after_commit(stored.number, events)
        await broker.request()

    def _settle(self, transaction: Transaction, delay: float) -> None:
        if delay > 0:
            loop, brokers_own = asyncio.get_running_loop(), Context()  # what becomes of the client is nothing to it
            loop.call_later(delay, self._stored.settle, transaction, context=brokers_own)
        else:
            self._stored.settle(transaction)

    def _let_go(self) -> None:
        pass


class MemoryReading:
    """A `runfold.ports.Reading`."""

    def __init__(self, broker: MemoryBroker, partition: Partition, offset: int, echo: Echo) -> None:
        self._broker, self._partition, self._next, self._echo = broker, partition, offset, echo
        self.taken = 0
        self.closed = False

    def __aiter__(self) -> AsyncIterator[Sequence[Delivery]]:
        return self

    async def __anext__(self) -> Sequence[Delivery]:
        while not self.closed:
            changed = self._partition.changed
            if self._broker.up and (batch := [self._deliver(stored) for stored in self._partition.visible(self._next)]):
                self._next = batch[-1].offset + 1
                return batch
            await changed.wait()
        raise StopAsyncIteration

    def _deliver(self, stored: Stored) -> Delivery:
        self.taken += len(stored.raw.value or b"")
        event = self._echo.take(stored.lane) if stored.lane else None
        if event is None:
            return read(stored.raw, self._broker.codec, len(self._broker.partitions))
        return Record(event, stored.raw.partition, stored.raw.offset, stored.raw.timestamp)

    async def close(self) -> None:
        self.closed = True
        self._partition.wake()


class MemoryLog:
    """A `runfold.ports.Log` on a `MemoryBroker`: one per worker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._echoes = [Echo() for _ in broker.partitions]
        self._readings: dict[int, MemoryReading] = {}
        self._appenders: list[MemoryAppender] = []

    @property
    def partitions(self) -> int:
        return len(self._broker.partitions)

    async def fence(self, partition: int) -> MemoryAppender:
        await self._broker.request()
        stored = self._broker.partitions[partition]
        appender = MemoryAppender(self._broker, stored, stored.fence(), self._echoes[partition].open())
        self._appenders.append(appender)
        return appender

    async def position(self, partition: int) -> Position:
        await self._broker.request()
        return self._broker.partitions[partition].position

    async def read(self, partition: int, offset: int) -> MemoryReading:
        if (last := self._readings.get(partition)) and not last.closed:
            raise ValueError(f"partition {partition} is being read already: close that reading first")
        reading = MemoryReading(self._broker, self._broker.partitions[partition], offset, self._echoes[partition])
        self._readings[partition] = reading
        return reading

    async def dead_letter(self, unreadable: Unreadable) -> None:
        await self._broker.request()
        self._broker.dead_letters.append(unreadable)

    async def close(self) -> None:
        for appender in self._appenders:
            appender.drop()
        for reading in self._readings.values():
            await reading.close()
