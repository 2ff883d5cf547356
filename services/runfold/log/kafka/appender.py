"""The appender on Kafka: the transactional producer of one partition, on a thread of its own.

There is one way out of trouble: drop the producer, without abort and without close, and fence anew. An abort that arrives late
would hit the next transaction; a drop leaves the open one to the next fence.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from runfold.config import Settings
from runfold.core.errors import LogUnavailable
from runfold.log.appending import BoundedAppender, Outgoing
from runfold.log.codec import TYPE_HEADER, Codec
from runfold.log.echo import Lane
from runfold.log.kafka import client
from runfold.log.kafka.failures import log_error
from runfold.log.kafka.message import Headers
from runfold.log.kafka.position import as_offset
from runfold.log.kafka.thread import ClientThread
from runfold.log.wire import LANE_HEADER
from runfold.ports import Position

FENCE_SECONDS = 10.0
STEP_SECONDS = 0.025  # each call asks the coordinator at once; one long call would sit on a timer of 500 ms
SLOW_SECONDS = 2.0  # a commit that took longer may have been sent twice, and its second copy may hit the next transaction


class TransactionalProducer:
    """A producer that is fenced in, and what it has heard of its connections. Lives on one thread."""

    def __init__(self, settings: Settings, partition: int) -> None:
        self._topic, self._partition = settings.topic, partition
        self._where = f"partition {partition}"
        self._shaken = False
        self._producer = client.make(Producer, client.owner(settings, partition) | {"error_cb": self._heard})

    def fence(self, unwanted: Callable[[], bool]) -> None:
        """End what earlier owners have open, unless it is ``unwanted`` by now: a late fence would hit the rightful owner.

        First connect: a cold client would lose half a second in each step.
        """
        deadline = time.monotonic() + FENCE_SECONDS
        self._producer.list_topics(self._topic, FENCE_SECONDS)
        while not unwanted():
            try:
                return self._producer.init_transactions(STEP_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
        raise LogUnavailable(f"{self._where}: nobody waits for this fence any more")

    def commit(self, records: Sequence[Outgoing], position: Position, proof: bytes) -> None:
        """One transaction. Raises `LogError`."""
        began, self._shaken = time.monotonic(), False
        try:
            self._transact(records, position, proof)
        except Exception as error:  # KafkaException, BufferError, or a SystemError around one
            raise log_error(error, self._where, proof) from None
        took = time.monotonic() - began
        if self._shaken or took > SLOW_SECONDS:
            raise LogUnavailable(f"{self._where}: a commit took {took:.1f} s over a shaky connection; fence again")

    def _transact(self, records: Sequence[Outgoing], position: Position, proof: bytes) -> None:
        producer, topic, partition = self._producer, self._topic, self._partition
        producer.begin_transaction()
        for record in records:
            headers: Headers = [(LANE_HEADER, record.lane_header), (TYPE_HEADER, record.type_header)]
            producer.produce(topic, record.value, record.key, partition, headers=headers)
        producer.send_offsets_to_transaction([as_offset(topic, partition, position)], proof, client.CALL_SECONDS)
        producer.commit_transaction(client.CALL_SECONDS)

    def drop(self) -> None:
        """Neither abort nor close; both wait for the broker, and worse. Done here, because ``error_cb`` holds ``self``."""
        del self._producer

    def _heard(self, error: KafkaError) -> None:
        self._shaken = True
        client.log_trouble(error)


class KafkaAppender(BoundedAppender):
    """A `runfold.ports.Appender`."""

    def __init__(self, thread: ClientThread[TransactionalProducer], partition: int, lane: Lane, codec: Codec) -> None:
        super().__init__(partition, lane, codec)
        self._thread = thread

    async def _commit(self, records: Sequence[Outgoing], position: Position, proof: bytes) -> None:
        await self._thread.call(lambda producer: producer.commit(records, position, proof), None)

    def _let_go(self) -> None:
        self._thread.stop()


def owner_thread(settings: Settings, partition: int) -> ClientThread[TransactionalProducer]:
    """The thread of a producer, which does nothing before the first call."""
    make = partial(TransactionalProducer, settings, partition)
    return ClientThread(f"runfold-lane-{partition}", make, TransactionalProducer.drop)
