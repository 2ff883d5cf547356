"""Where the log ends, as a worker's reader and the projector know it.

Also what nobody can read yet, for that is when a partition stands still; and also when the connection that reads hangs.
"""

import asyncio
import time
from collections.abc import Callable

from confluent_kafka import Producer, TopicPartition

from runfold.config import Settings
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLog
from runfold.log.kafka.source import KafkaSource
from tests.conftest import TopicFactory

PATIENCE = 20.0


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.02)  # what a client has fetched tells nobody


async def test_the_end_moves_with_records_that_cannot_be_read_yet(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    log = await KafkaLog.open(Settings(bootstrap=bootstrap, topic=name, group=name), Codec())
    try:
        assert log.ends == {}
        reading = await log.read(1, 0)
        await until(lambda: log.ends == {1: 0})
        owner = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
        owner.init_transactions(PATIENCE)
        owner.begin_transaction()
        owner.produce(name, b"?", b"?", 1)
        assert owner.flush(PATIENCE) == 0
        await until(lambda: log.ends == {1: 1})
        assert reading.waiting == 0
        owner.commit_transaction(PATIENCE)
        await until(lambda: reading.waiting == 1)
        await until(lambda: log.ends == {1: 2})
        await reading.close()
        await until(lambda: log.ends == {})
    finally:
        await log.close()


async def test_the_end_moves_when_nothing_is_fetched_any_more(bootstrap: str, topic: TopicFactory) -> None:
    """So that a lag is seen. No more fetches: as of a connection that hangs alone."""
    name = topic(partitions=1)
    source = KafkaSource(Settings(bootstrap=bootstrap, topic=name, group=name), Codec())
    try:
        source.assign({0: 0})
        await asyncio.to_thread(source.poll, PATIENCE / 2)  # it has come to the end
        source._consumer.pause([TopicPartition(name, 0)])
        others = Producer({"bootstrap.servers": bootstrap})
        for count in (1, 2):  # the first may still come in the fetch that was under way
            others.produce(name, b"?", b"?", 0)
            assert others.flush(PATIENCE) == 0
            await until(lambda: source.ends() == {0: count})  # noqa: B023
        assert source.reached() == {0: 0}
    finally:
        source.close()
