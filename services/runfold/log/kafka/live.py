"""The side topic of live text on Kafka. It may be missing, full or away: then there is no live text, and no more is wrong."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from runfold.config import Settings
from runfold.log import live
from runfold.log.kafka import client
from runfold.log.partitioner import partition_of
from runfold.ports import LiveText

ASK_SECONDS = 2.0
_POLL_SECONDS = 1.0  # between two looks at what could not be delivered
_MOST_MESSAGES = 1000  # of one read

log = logging.getLogger("runfold.live")


class KafkaLive:
    """A `runfold.ports.Live`: a plain producer, whose own queue is the bound. ``dropped()`` is called for each piece lost.

    No thread waits for delivery reports: the broker's yes is not asked for, its no is looked for with later pieces."""

    def __init__(self, settings: Settings, dropped: Callable[[], None]) -> None:
        self._topic, self._dropped = client.live_topic(settings), dropped
        self._producer = client.make(Producer, client.live(settings))
        self._looked, self._complained = time.monotonic(), False

    def show(self, piece: LiveText) -> None:
        try:
            self._producer.produce(self._topic, live.encode(piece), piece.run_id.encode(), on_delivery=self._delivered)
            if (now := time.monotonic()) - self._looked > _POLL_SECONDS:
                self._looked = now
                self._producer.poll(0)
        except BufferError as error:
            self._lost(str(error))
            with suppress(KafkaException):
                self._producer.poll(0)  # makes room where pieces have been given up
        except (KafkaException, ValueError) as error:
            self._lost(str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._lost(error.str())

    def _lost(self, why: str) -> None:
        self._dropped()
        if not self._complained:
            self._complained = True
            log.warning("live text is dropped, runs go on: topic %s: %s; `runfold topic create` makes it", self._topic, why)


class KafkaLiveReader:
    """A `runfold.ports.LiveReader`. Make it with `open`."""

    def __init__(self, consumer: Consumer, run_id: str) -> None:
        self._consumer, self._key = consumer, run_id.encode()

    @classmethod
    def open(cls, settings: Settings, run_id: str, since: int) -> "KafkaLiveReader | None":
        """Read what was shown from broker ms ``since`` on. None where the side topic is not to be had."""
        consumer = client.make(Consumer, client.live_reader(settings))
        deadline = time.monotonic() + ASK_SECONDS
        while True:
            try:
                consumer.assign([_place(consumer, client.live_topic(settings), run_id, since)])
                return cls(consumer, run_id)
            except (KafkaException, LookupError) as error:
                if isinstance(error, LookupError) or time.monotonic() > deadline:
                    consumer.close()
                    return None
                time.sleep(0.05)  # a topic that is new has no leader yet

    def read(self, seconds: float) -> list[LiveText]:
        try:
            messages = self._first(seconds)
            messages += self._consumer.consume(_MOST_MESSAGES, 0) if messages else []
        except (KafkaException, RuntimeError):
            return []
        values = [message.value() for message in messages if message.error() is None and message.key() == self._key]
        return [piece for piece in map(live.decode, values) if piece is not None]

    def _first(self, seconds: float) -> list[Message]:
        """As soon as it is there: `consume` would wait until it has all that it was asked for."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None or (message.error() is None and message.key() == self._key):
                return [] if message is None else [message]
            if time.monotonic() > deadline:
                return []

    def close(self) -> None:
        self._consumer.close()


def _place(consumer: Consumer, topic: str, run_id: str, since: int) -> TopicPartition:
    """Where the run's text begins. Raises `LookupError` where there is no such topic."""
    partitions = consumer.list_topics(topic, ASK_SECONDS).topics[topic].partitions
    if not partitions:
        raise LookupError(topic)
    partition = partition_of(run_id.encode(), len(partitions))
    at = TopicPartition(topic, partition, since)
    _, end = consumer.get_watermark_offsets(at, ASK_SECONDS)  # first: what is shown while we ask is not behind us
    (found,) = consumer.offsets_for_times([at], ASK_SECONDS)
    return TopicPartition(topic, partition, found.offset if found.offset >= 0 else end)
