"""Reading the end of a partition once, with a consumer that stays connected."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from runfold.config import Settings
from runfold.core.errors import LogUnavailable
from runfold.core.events import Command, Record
from runfold.log.codec import Codec
from runfold.log.kafka import client
from runfold.log.kafka.message import raw_record
from runfold.log.kafka.oldest import oldest
from runfold.log.kafka.thread import ClientThread
from runfold.log.kafka.topic import partition_count
from runfold.log.partitioner import partition_of
from runfold.log.wire import RawRecord, read

READ_SECONDS = 5.0
BEHIND_SECONDS = 2.0


class _Consumers:
    """Two views of the topic, on one thread: what is committed, and everything."""

    def __init__(self, settings: Settings) -> None:
        self.committed = client.make(Consumer, client.tail(settings, "read_committed"))
        self.all = client.make(Consumer, client.tail(settings, "read_uncommitted"))

    def close(self) -> None:
        self.committed.close()
        self.all.close()


class KafkaTail:
    """A `runfold.ports.Tail`. One read at a time, and one question of `behind` beside it; make it with `open`."""

    def __init__(self, settings: Settings, codec: Codec, partitions: int, thread: ClientThread[_Consumers]) -> None:
        self._topic, self._codec, self._partitions, self._thread = settings.topic, codec, partitions, thread
        self._turn = asyncio.Lock()
        watcher = partial(Consumer, client.tail(settings, "read_committed"))
        # its own thread: many reads mean that the projection is far behind, which is when the answer is wanted
        self._watching = ClientThread("runfold-behind", watcher, Consumer.close)

    @classmethod
    async def open(cls, settings: Settings, codec: Codec) -> "KafkaTail":
        """Connect. Raises `LogUnavailable`, `TopicMismatch`."""
        thread = ClientThread("runfold-tail", partial(_Consumers, settings), _Consumers.close)
        try:
            count = await thread.call(lambda ask: partition_count(ask.committed, settings.topic, READ_SECONDS), READ_SECONDS + 1)
        except BaseException:
            thread.stop()
            raise
        return cls(settings, codec, count, thread)

    def partition_of(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self._partitions)

    async def records(self, run_id: str, after: int) -> list[Record]:
        partition = self.partition_of(run_id)
        async with self._turn:
            return await self._thread.call(
                lambda consumers: self._read(consumers, partition, run_id.encode(), after), READ_SECONDS + 1
            )

    async def behind(self, reached: Mapping[int, int]) -> float:
        everywhere = {partition: reached.get(partition, 0) for partition in range(self._partitions)}
        written = await self._watching.call(
            lambda consumer: oldest(consumer, self._topic, everywhere, BEHIND_SECONDS), BEHIND_SECONDS + 1
        )
        return 0.0 if written is None else max(0.0, time.time() - written / 1000)

    async def close(self) -> None:
        self._thread.stop()
        self._watching.stop()

    # ---- on the thread, decoding too: it may ask the schema registry, and wait

    def _read(self, consumers: _Consumers, partition: int, key: bytes, start: int) -> list[Record]:
        """What is committed, and the commands behind the first open transaction, whose end nobody can foresee."""
        deadline = time.monotonic() + READ_SECONDS
        at = TopicPartition(self._topic, partition)
        low, stable = consumers.committed.get_watermark_offsets(at, READ_SECONDS)
        _, end = consumers.all.get_watermark_offsets(at, READ_SECONDS)
        committed = _read_to(consumers.committed, at, max(start, low), stable, key, deadline)
        uncertain = _read_to(consumers.all, at, max(start, stable), end, key, deadline)
        commands = (record for record in self._readable(uncertain) if isinstance(record.event, Command))
        return [*self._readable(committed), *commands]

    def _readable(self, raw: list[RawRecord]) -> Iterator[Record]:
        deliveries = (read(record, self._codec, self._partitions) for record in raw)
        return (delivery for delivery in deliveries if isinstance(delivery, Record))


def _read_to(
    consumer: Consumer, at: TopicPartition, start: int, end: int, key: bytes, deadline: float
) -> list[RawRecord]:
    """The records with ``key`` from ``start`` to before ``end``."""
    if start >= end:
        return []
    consumer.assign([TopicPartition(at.topic, at.partition, start)])
    try:
        return list(_until(consumer, end, key, deadline))
    finally:
        consumer.unassign()


def _until(consumer: Consumer, end: int, key: bytes, deadline: float) -> Iterator[RawRecord]:
    """The last offset may be a marker, which is never delivered: then the client says that the end is reached."""
    while (left := deadline - time.monotonic()) > 0:
        if (message := consumer.poll(left)) is None:
            continue
        offset = message.offset() or 0
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            if error.code() in (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET):
                raise KafkaException(error)
        elif message.key() == key and offset < end:
            yield raw_record(message)
        if error is None and offset >= end - 1:
            return
    raise LogUnavailable(f"the end of the partition, offset {end}, was not reached within {READ_SECONDS} s")
