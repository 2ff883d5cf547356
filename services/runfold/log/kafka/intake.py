"""What the reader thread does with its consumer: assign by hand, poll, decode, pause a partition whose records nobody takes.

Offsets only move forward: whatever the client delivers twice, or after a partition was given back, is dropped here.
"""

import logging
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from runfold.core.errors import LogError, LogUnavailable
from runfold.core.events import Delivery, Record
from runfold.log.codec import Codec
from runfold.log.echo import Echo
from runfold.log.kafka import client
from runfold.log.kafka.message import headers_of, raw_record
from runfold.log.kafka.reading import KafkaReading
from runfold.log.wire import LANE_HEADER, read

BATCH = 500  # messages handed over at once
FULL_BYTES = 16 * 1024 * 1024  # waiting in the loop for one partition: then it is paused
MESSAGE_BYTES = 512  # what a message costs beside its value, about
RETRY_SECONDS = 0.5
_log = logging.getLogger("runfold.kafka")


@dataclass(slots=True)
class Assigned:
    """A partition that is being read."""

    partition: int
    next: int  # nothing at or after this offset was delivered yet
    reading: KafkaReading
    echo: Echo
    put: int = 0  # bytes handed over
    retry_at: float | None = None  # monotonic; until then nothing is delivered
    batch: list[Delivery] = field(default_factory=list)  # of the poll under way
    error: LogError | None = None  # after which nothing follows

    @property
    def waiting(self) -> int:
        """Bytes that the loop has not taken yet."""
        return self.put - self.reading.taken


class Intake:
    """The consumer and the partitions that are assigned to it. Lives on one thread."""

    def __init__(self, consumer: Consumer, topic: str, partitions: int, codec: Codec) -> None:
        self._consumer, self._topic, self._partitions, self._codec = consumer, topic, partitions, codec
        self._assigned: dict[int, Assigned] = {}
        self._held_up: set[int] = set()  # partitions that are paused or wait for a retry

    def assign(self, assigned: Assigned) -> None:
        self._assigned[assigned.partition] = assigned
        self._consumer.incremental_assign([self._at(assigned)])

    def unassign(self, assigned: Assigned) -> None:
        if self._assigned.pop(assigned.partition, None):
            self._held_up.discard(assigned.partition)
            self._consumer.incremental_unassign([self._at(assigned)])

    def ends(self) -> dict[int, int]:
        """By partition: where the log ends, as of the last fetch; -1001 before the first. What is not committed counts."""
        ask = self._consumer.get_watermark_offsets
        return {number: ask(self._at(assigned), cached=True)[1] for number, assigned in self._assigned.items()}

    def poll(self, seconds: float) -> list[Assigned]:
        """Those to whom something happened. One message is waited for: consume() alone would wait for a full batch."""
        for partition in tuple(self._held_up):
            self._try_to_go_on(self._assigned[partition])
        if (first := self._consumer.poll(seconds)) is None:
            return []
        for message in (first, *self._consumer.consume(BATCH, 0)):
            self._take(message)
        touched = [assigned for assigned in self._assigned.values() if assigned.batch or assigned.error]
        for assigned in touched:
            if assigned.waiting > FULL_BYTES and assigned.partition not in self._held_up:
                self._pause(assigned)
        return touched

    # ---- a message

    def _take(self, message: Message) -> None:
        assigned, error = self._assigned.get(message.partition() or 0), message.error()
        if error is not None:
            self._trouble(error, assigned)
        elif assigned is not None and assigned.retry_at is None and (message.offset() or 0) >= assigned.next:
            self._deliver(message, assigned)

    def _deliver(self, message: Message, assigned: Assigned) -> None:
        offset = message.offset() or 0
        try:
            assigned.batch.append(self._delivery(message, assigned, offset))
        except LogUnavailable as error:  # the schema registry is away; nothing can be said of this record without it
            self._retry(assigned, error)
        else:
            assigned.next = offset + 1
            assigned.put += len(message) + MESSAGE_BYTES

    def _delivery(self, message: Message, assigned: Assigned, offset: int) -> Delivery:
        for name, value in headers_of(message):
            if name == LANE_HEADER and (event := assigned.echo.take(value)) is not None:
                return Record(event, assigned.partition, offset, message.timestamp()[1])
        return read(raw_record(message), self._codec, self._partitions)

    # ---- trouble

    def _trouble(self, error: KafkaError, assigned: Assigned | None) -> None:
        if error.code() == KafkaError._FATAL:  # this consumer never recovers, though error.fatal() may be False
            raise KafkaException(error)
        if error.code() == KafkaError._AUTO_OFFSET_RESET and assigned is not None:
            self._relocate(assigned)
        else:
            client.log_trouble(error)

    def _relocate(self, assigned: Assigned) -> None:
        """The offset is not in the log: retention took it, or the log was cut."""
        try:
            low, high = self._consumer.get_watermark_offsets(self._at(assigned), client.CALL_SECONDS)
        except KafkaException as error:
            self._retry(assigned, error)
            return
        if assigned.next < low:
            _log.warning("partition %d: offset %d is gone, reading on from %d", assigned.partition, assigned.next, low)
            assigned.next = low
            self._reassign(assigned)
        else:
            expected = f"partition {assigned.partition}: expected records at offset {assigned.next}"
            assigned.error = LogError(f"{expected}, but the log ends at {high}: it has lost records")

    def _retry(self, assigned: Assigned, error: Exception) -> None:
        _log.warning("partition %d: cannot read on at offset %d: %s", assigned.partition, assigned.next, error)
        assigned.retry_at = time.monotonic() + RETRY_SECONDS
        self._pause(assigned)

    def _pause(self, assigned: Assigned) -> None:
        self._held_up.add(assigned.partition)
        self._consumer.pause([self._at(assigned)])

    def _try_to_go_on(self, assigned: Assigned) -> None:
        if assigned.waiting > FULL_BYTES / 2 or (assigned.retry_at or 0) > time.monotonic():
            return
        assigned.retry_at = None
        self._held_up.discard(assigned.partition)
        self._reassign(assigned)

    def _reassign(self, assigned: Assigned) -> None:
        self._consumer.incremental_unassign([self._at(assigned)])
        self._consumer.incremental_assign([self._at(assigned)])
        self._consumer.resume([self._at(assigned)])  # a pause outlives its assignment

    def _at(self, assigned: Assigned) -> TopicPartition:
        return TopicPartition(self._topic, assigned.partition, assigned.next)
