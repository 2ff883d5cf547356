"""A worker's access to the topic: `runfold.ports.Log` on Kafka."""

from collections.abc import Mapping

from runfold.config import Settings
from runfold.core.events import Unreadable
from runfold.log.codec import Codec
from runfold.log.echo import Echo
from runfold.log.kafka.appender import FENCE_SECONDS, KafkaAppender, TransactionalProducer, owner_thread
from runfold.log.kafka.dead_letters import DeadLetters
from runfold.log.kafka.position import Positions
from runfold.log.kafka.pulse import Pulse
from runfold.log.kafka.reader import Reader
from runfold.log.kafka.reading import KafkaReading
from runfold.log.kafka.thread import ClientThread
from runfold.ports import Position


class KafkaLog:
    """Make it with `open`, in the loop that uses it and in the process that uses it: Kafka clients do not survive a fork."""

    def __init__(self, settings: Settings, codec: Codec, reader: Reader, partitions: int) -> None:
        self._settings, self._codec, self._reader = settings, codec, reader
        self._positions, self._dead_letters = Positions(settings), DeadLetters(settings)
        self._pulse = Pulse(settings, lambda: tuple(reader.ends))
        self._echoes = [Echo() for _ in range(partitions)]
        self._owners: list[ClientThread[TransactionalProducer]] = []

    @classmethod
    async def open(cls, settings: Settings, codec: Codec) -> "KafkaLog":
        """Connect, so that no takeover has to wait for it. Raises `LogUnavailable`, `TopicMismatch`."""
        reader = Reader(settings, codec)
        try:
            return cls(settings, codec, reader, await reader.open())
        except BaseException:
            await reader.close()
            raise

    @property
    def partitions(self) -> int:
        return len(self._echoes)

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition that is being read: where the log ends, as was last heard. What is not committed counts."""
        heard = self._pulse.ends  # of a connection of its own: a fetch that hangs hears of no end
        return {partition: max(end, heard.get(partition, end)) for partition, end in self._reader.ends.items()}

    @property
    def read_at(self) -> float:
        """When the thread that reads last showed a sign of life, in seconds of CLOCK_MONOTONIC."""
        return self._reader.looked_at

    @property
    def heard_at(self) -> float:
        """When the brokers last answered, those that lead the partitions being read, in seconds of CLOCK_MONOTONIC."""
        return self._pulse.heard_at

    async def fence(self, partition: int) -> KafkaAppender:
        thread = owner_thread(self._settings, partition)
        self._owners = [*(owner for owner in self._owners if not owner.stopped), thread]
        try:
            await thread.call(lambda producer: producer.fence(lambda: thread.stopped), FENCE_SECONDS + 1)
        except BaseException:
            thread.stop()
            raise
        return KafkaAppender(thread, partition, self._echoes[partition].open(), self._codec)

    async def position(self, partition: int) -> Position:
        return await self._positions.of(partition)

    async def read(self, partition: int, offset: int) -> KafkaReading:
        return self._reader.read(partition, offset, self._echoes[partition])

    async def dead_letter(self, unreadable: Unreadable) -> None:
        await self._dead_letters.put(unreadable)

    async def close(self) -> None:
        for owner in self._owners:
            owner.stop()
        self._positions.close()
        self._pulse.close()
        await self._dead_letters.close()
        await self._reader.close()
