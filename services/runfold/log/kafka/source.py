"""All partitions of the topic for one thread that reads and does nothing else: where the projector's records come from.

No group and no group offsets: whoever reads knows where it stands.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from runfold.config import Settings
from runfold.core.errors import LogError
from runfold.core.events import Delivery
from runfold.log.codec import Codec
from runfold.log.kafka import client
from runfold.log.kafka.failures import log_error
from runfold.log.kafka.message import raw_record
from runfold.log.kafka.pulse import Pulse
from runfold.log.kafka.topic import partition_count
from runfold.log.wire import read

BATCH = 10_000  # messages handed over at once; the client holds 16 MB of them at most
_log = logging.getLogger("runfold.kafka")


class KafkaSource:
    """Blocking; one thread makes it and uses it. Every method raises `LogError`; making it, `TopicMismatch` too."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._topic, self._codec = settings.topic, codec
        self._consumer = client.make(Consumer, client.reader(settings) | {"enable.partition.eof": True})
        self._reached: dict[int, int] = {}  # everything before was delivered, or is nothing to deliver
        self._ends: dict[int, int] = {}  # when the partitions were assigned
        try:
            self.partitions = partition_count(self._consumer, settings.topic, client.CALL_SECONDS)
        except BaseException:
            self._consumer.close()
            raise
        self._pulse = Pulse(settings, lambda: range(self.partitions))

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on, or from the log's beginning where that is later."""
        try:
            self._reached = {partition: self._start(partition, offset) for partition, offset in offsets.items()}
            self._consumer.assign([TopicPartition(self._topic, *start) for start in self._reached.items()])
        except KafkaException as error:
            raise log_error(error, f"topic {self._topic}") from None

    def _start(self, partition: int, offset: int) -> int:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), client.CALL_SECONDS)
        if offset > high:
            raise LogError(
                f"partition {partition} of {self._topic}: expected records up to offset {offset}, the log ends at {high}: "
                "it has lost records, or is another topic of the same name"
            )
        if offset < low:
            _log.warning("partition %d: offset %d is gone, reading from %d on", partition, offset, low)
        self._ends[partition] = high
        return max(offset, low)

    def poll(self, timeout: float) -> Sequence[Delivery]:
        """What has come; nothing after ``timeout`` seconds. One message is waited for: consume() would wait for a full batch."""
        if (first := self._consumer.poll(timeout)) is None:
            return ()
        return [delivery for message in (first, *self._consumer.consume(BATCH, 0)) if (delivery := self._take(message))]

    def _take(self, message: Message) -> Delivery | None:
        if (error := message.error()) is not None:
            self._trouble(error, message)
            return None
        delivery = read(raw_record(message), self._codec, self.partitions)
        self._reached[delivery.partition] = delivery.offset + 1
        return delivery

    def _trouble(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._reached[message.partition() or 0] = message.offset() or 0
        elif error.code() in (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET):
            raise LogError(f"partition {message.partition()} of {self._topic} cannot be read on: {error}")
        else:
            client.log_trouble(error)

    def reached(self) -> Mapping[int, int]:
        """By partition: `poll` has returned everything before this offset; markers at the end count, once the end is known."""
        return self._reached

    def ends(self) -> Mapping[int, int]:
        """By partition: where the log ends, as was last heard. Records that are not committed yet count."""
        heard = self._pulse.ends  # of a connection of its own: a fetch that hangs hears of no end
        return {number: max(end, self._fetched_end(number), heard.get(number, end)) for number, end in self._ends.items()}

    @property
    def heard_at(self) -> float:
        """When the brokers last answered, in seconds of CLOCK_MONOTONIC: the `ends` of one that is silent are old."""
        return self._pulse.heard_at

    def beginnings(self, partitions: Iterable[int]) -> Mapping[int, int]:
        """Of these partitions: the oldest offset that the log still has. Asks the broker."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            return {place.partition: self._consumer.get_watermark_offsets(place, client.CALL_SECONDS)[0] for place in places}
        except KafkaException as error:
            raise log_error(error, f"topic {self._topic}") from None

    def _fetched_end(self, partition: int) -> int:
        _, high = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        return high  # negative before the first fetch

    def close(self) -> None:
        self._pulse.close()
        self._consumer.close()
