"""What those who own nothing do with the memory broker: write commands, read the end of a partition."""

from collections.abc import Mapping

from runfold.core.events import Command, Record
from runfold.log.codec import record_type
from runfold.log.memory.broker import MemoryBroker
from runfold.log.partitioner import partition_of
from runfold.log.wire import command_key, read


class MemoryCommands:
    """A `runfold.ports.Commands`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def send(self, command: Command) -> tuple[int, int]:
        key = command_key(command)
        value = self._broker.codec.encode(command)
        await self._broker.request()
        partition = partition_of(key, len(self._broker.partitions))
        return partition, self._broker.put(partition, key, value, record_type(command))

    async def close(self) -> None:
        pass


class MemoryTail:
    """A `runfold.ports.Tail`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def partition_of(self, run_id: str) -> int:
        return partition_of(run_id.encode(), len(self._broker.partitions))

    async def records(self, run_id: str, after: int) -> list[Record]:
        await self._broker.request()
        broker, key = self._broker, run_id.encode()
        partition = broker.partitions[self.partition_of(run_id)]
        found = [one.raw for one in (*partition.visible(after), *partition.commands(after)) if one.raw.key == key]
        deliveries = [read(raw, broker.codec, len(broker.partitions)) for raw in found]
        return [delivery for delivery in deliveries if isinstance(delivery, Record)]

    async def behind(self, reached: Mapping[int, int]) -> float:
        await self._broker.request()
        partitions = self._broker.partitions
        firsts = [next(partition.visible(reached.get(partition.number, 0)), None) for partition in partitions]
        written = [first.raw.timestamp for first in firsts if first is not None]
        return max(0, self._broker.clock() - min(written)) / 1000 if written else 0.0

    async def close(self) -> None:
        pass
