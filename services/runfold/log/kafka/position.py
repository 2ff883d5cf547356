"""The group's offset of a partition, with the low watermark in its metadata text."""

from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from runfold.config import Settings
from runfold.log.kafka import client
from runfold.log.kafka.thread import ClientThread
from runfold.ports import Position

_LOW = "low="


def as_offset(topic: str, partition: int, position: Position) -> TopicPartition:
    return TopicPartition(topic, partition, position.next, f"{_LOW}{position.low}")


def as_position(offset: TopicPartition) -> Position:
    """Without our metadata, as after a reset of the group by a tool, folding starts at the beginning."""
    text = offset.metadata or ""
    low = text.removeprefix(_LOW)
    return Position(next=max(offset.offset, 0), low=int(low) if text != low and low.isascii() and low.isdigit() else 0)


class Positions:
    """Asks for positions, without waiting for open transactions: one of a dead broker's can stay open for ever."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.topic
        self._thread = ClientThread("runfold-positions", partial(client.make, Consumer, client.offsets(settings)), Consumer.close)
        self._thread.begin(partial(self._ask, partition=0))  # connect and find the coordinator before a takeover waits for it

    async def of(self, partition: int) -> Position:
        """Raises `LogUnavailable`."""
        return await self._thread.call(partial(self._ask, partition=partition), client.CALL_SECONDS + 2)

    def _ask(self, consumer: Consumer, partition: int) -> Position:
        (offset,) = consumer.committed([TopicPartition(self._topic, partition)], client.CALL_SECONDS)
        if offset.error is not None:
            raise KafkaException(offset.error)
        return as_position(offset)

    def close(self) -> None:
        self._thread.stop()
