"""The oldest record that a reader of the topic has not reached, found without decoding anything."""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from runfold.core.errors import LogUnavailable


def oldest(consumer: Consumer, topic: str, reached: Mapping[int, int], seconds: float) -> int | None:
    """Broker ms of the oldest committed record at or after these offsets, one per partition; None when there is none.

    A partition that ends in markers or aborted records has offsets to come and no record: only reading on tells. So ``consumer``
    is a read_committed one that says when the end is reached. Raises `LogUnavailable` when that takes longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    starts = [start for at in reached.items() if (start := _start(consumer, TopicPartition(topic, *at), deadline))]
    if not starts:
        return None
    consumer.assign(starts)
    try:
        return min(_firsts(consumer, {start.partition for start in starts}, deadline), default=None)
    finally:
        consumer.unassign()


def _start(consumer: Consumer, at: TopicPartition, deadline: float) -> TopicPartition | None:
    """Where reading begins, if there is anything: what retention took is gone."""
    low, stable = consumer.get_watermark_offsets(at, _left(deadline))
    start = max(at.offset, low)
    return TopicPartition(at.topic, at.partition, start) if start < stable else None


def _firsts(consumer: Consumer, waiting: set[int], deadline: float) -> list[int]:
    """The timestamp of the first record of each partition that has one."""
    found: list[int] = []
    while waiting:
        message = consumer.poll(_left(deadline))
        if message is None or message.partition() not in waiting or not _tells(message):
            continue
        waiting.discard(message.partition() or 0)
        if message.error() is None:
            found.append(message.timestamp()[1])
    return found


def _tells(message: Message) -> bool:
    """Whether it is a record, or says that there is none."""
    if (error := message.error()) is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    if error.code() in (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET):
        raise KafkaException(error)
    return False


def _left(deadline: float) -> float:
    if (left := deadline - time.monotonic()) <= 0:
        raise LogUnavailable("the first records that are not reached yet were not found in time")
    return left
