"""The projector on a real Kafka and a real PostgreSQL."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as MayStop
from threading import Event

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from runfold.cli.wiring import projector
from runfold.config import Settings
from runfold.core.errors import LogError, TopicMismatch
from runfold.core.events import Delivery, Problem, Record, RunSnapshotted, Unreadable
from runfold.log.codec import TYPE_HEADER, Codec, record_type
from runfold.log.kafka.source import KafkaSource
from runfold.log.wire import key_of
from runfold_projector.ports import Silence, Source
from runfold_projector.service import Projector
from runfold_projector.stable import StableOffsets
from runfold_projector.store import Writer
from tests.conftest import TopicFactory
from tests.integration.projecting import PATIENCE, reached, until
from tests.logs import ScriptedLog, random_log
from tests.tables import assert_tables_equal_fold, dump

CODEC = Codec()
FORK = get_context("forkserver")


def put(producer: Producer, topic: str, deliveries: Sequence[Delivery]) -> None:
    """Write what ``deliveries`` hold; not flushed."""
    for delivery in deliveries:
        if isinstance(delivery, Record):
            event = delivery.event
            headers: list[tuple[str, str | bytes | None]] = [(TYPE_HEADER, record_type(event))]
            producer.produce(topic, CODEC.encode(event), key_of(event), delivery.partition, headers=headers)
        else:
            producer.produce(topic, delivery.value, delivery.key, delivery.partition)


def as_produced(log: ScriptedLog) -> list[Delivery]:
    """Something unreadable stands for gaps, so that offsets hold, and for snapshots: they tell times that no broker gives."""
    at = {record.offset: record for record in log.records if not isinstance(record.event, RunSnapshotted)}
    nothing = [Unreadable(log.partition, offset, 0, b"", None, Problem.NULL_VALUE, "") for offset in range(log.next_offset)]
    return [at.get(delivery.offset, delivery) for delivery in nothing]


def read_until(source: Source, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} deliveries came"
        found += source.poll(0.5)
    return found


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    made = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    yield made
    made.flush(PATIENCE)


def settings_of(bootstrap: str, topic: str) -> Settings:
    return Settings(bootstrap=bootstrap, topic=topic)


@contextmanager
def process(bootstrap: str, topic: str, dsn: str) -> Iterator[tuple[BaseProcess, MayStop]]:
    """A projector in a process of its own, killed at the end of the block; and what makes it stop by itself."""
    FORK.set_forkserver_preload([projector.__name__])  # the fork server imports once: a child costs milliseconds
    stop = FORK.Event()
    child = FORK.Process(target=projector.project, args=(Settings(bootstrap=bootstrap, topic=topic, dsn=dsn), "public", stop))
    child.start()
    try:
        yield child, stop
    finally:
        child.kill()
        child.join()


def test_committed_records_come_in_order_and_the_end_is_known_behind_a_marker(bootstrap: str, topic: TopicFactory) -> None:
    log = ScriptedLog()
    log.lease()
    log.request().to_the_end()
    name = topic(partitions=1)
    owner = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "retry.backoff.ms": 1})
    owner.init_transactions(PATIENCE)
    for end in (owner.abort_transaction, owner.commit_transaction):
        owner.begin_transaction()
        put(owner, name, log.deliveries)
        owner.flush(PATIENCE)
        end(PATIENCE)
    owner.begin_transaction()
    put(owner, name, log.deliveries[:1])
    owner.flush(PATIENCE)  # left open
    count = len(log.deliveries)
    with closing(KafkaSource(settings_of(bootstrap, name), CODEC)) as source:
        source.assign({0: 0})
        assert (source.ends(), source.reached()) == ({0: 2 * count + 2}, {0: 0})
        found = read_until(source, count)
        assert [delivery.event for delivery in found if isinstance(delivery, Record)] == [record.event for record in log.records]
        assert [delivery.offset for delivery in found] == list(range(count + 1, 2 * count + 1))
        until(lambda: not source.poll(0.05) and source.reached() == {0: 2 * count + 2})
        until(lambda: not source.poll(0.05) and source.ends() == {0: 2 * count + 3})
        stable = StableOffsets()
        for now in (0.0, 7.0):
            stable.look(source.ends(), source.reached(), now)
        assert stable.age == 7, "the record of the open transaction is known, and the stable offset does not move"
        owner.abort_transaction(PATIENCE)
        until(lambda: not source.poll(0.05) and source.reached() == source.ends() == {0: 2 * count + 4})
        stable.look(source.ends(), source.reached(), 8.0)
        assert stable.age == 0


def test_k09_null_values_and_rubbish_come_as_unreadable(bootstrap: str, topic: TopicFactory, producer: Producer) -> None:
    """K09.1, the source's side"""
    name = topic(partitions=1)
    producer.produce(name, None, b"key")
    producer.produce(name, b"rubbish", b"key")
    producer.flush(PATIENCE)
    with closing(KafkaSource(settings_of(bootstrap, name), CODEC)) as source:
        source.assign({0: 0})
        problems = [getattr(delivery, "problem", None) for delivery in read_until(source, 2)]
    assert problems == [Problem.NULL_VALUE, Problem.MALFORMED]


def test_a_log_that_has_lost_records_is_an_error_and_one_that_has_lost_its_beginning_is_read_on(
    bootstrap: str, topic: TopicFactory, producer: Producer, admin: AdminClient
) -> None:
    name = topic(partitions=1)
    log = random_log(31, 50, partitions=1)
    put(producer, name, log.deliveries)
    producer.flush(PATIENCE)
    source = KafkaSource(settings_of(bootstrap, name), CODEC)
    with pytest.raises(LogError, match="it has lost records"), closing(source):
        source.assign({0: len(log.deliveries) + 1})
    deleted = admin.delete_records([TopicPartition(name, 0, 20)])
    next(iter(deleted.values())).result(PATIENCE)
    with closing(KafkaSource(settings_of(bootstrap, name), CODEC)) as source:
        source.assign({0: 0})
        assert read_until(source, 1)[0].offset == 20


def test_a_topic_that_does_not_exist_is_said_to_be_missing(bootstrap: str) -> None:
    with pytest.raises(TopicMismatch, match="runfold topic create"):
        KafkaSource(settings_of(bootstrap, "missing"), CODEC)


def test_j01_killed_30_times_the_tables_equal_a_rebuild_and_the_fold(
    bootstrap: str, topic: TopicFactory, producer: Producer, dsn: str
) -> None:
    """J01.1"""
    seed, partitions = 32, 4
    print(f"{seed=}")
    name, chance = topic(partitions), random.Random(seed)
    logs = [random_log(seed, 900, partition, partitions) for partition in range(partitions)]
    left = [delivery for row in zip(*map(as_produced, logs), strict=False) for delivery in row]
    count, portion = len(left), len(left) // 200

    def produce() -> None:
        put(producer, name, left[:portion])
        producer.flush(PATIENCE)
        del left[:portion]

    with closing(Writer.open(dsn, name)) as tables:
        for _ in range(30):
            before = sum(reached(tables, partitions).values())
            with process(bootstrap, name, dsn):
                produce()
                until(lambda: sum(reached(tables, partitions).values()) > before)  # noqa: B023
                for _ in range(chance.randrange(6)):  # it is at work on some of these when it is killed
                    produce()
        print("records before the last start:", sum(reached(tables, partitions).values()))
        portion = count
        produce()
        with process(bootstrap, name, dsn) as (child, stop):
            until(lambda: sum(reached(tables, partitions).values()) == count)
            stop.set()
            child.join(PATIENCE)
            assert child.exitcode == 0
    rebuild(bootstrap, name, dsn, count)
    assert dump(dsn) == dump(dsn, "rebuilt")
    assert len(dump(dsn)["run"]) >= 200
    assert_tables_equal_fold(dsn, read_logs(bootstrap, name, partitions, count))


def rebuild(bootstrap: str, name: str, dsn: str, count: int) -> None:
    """Project the topic from its beginning into a schema of its own."""
    stop, settings = Event(), settings_of(bootstrap, name)
    observer = StopAfter(count, stop)
    Projector(lambda: KafkaSource(settings, CODEC), lambda: Writer.open(dsn, name, "rebuilt"), observer).run(stop)


class StopAfter(Silence):
    """Sets ``stop`` when so many records are in the tables."""

    def __init__(self, count: int, stop: Event) -> None:
        self._left, self._stop = count, stop

    def written(self, records: int, rows: int, seconds: float) -> None:
        self._left -= records
        if self._left <= 0:
            self._stop.set()


def read_logs(bootstrap: str, name: str, partitions: int, count: int) -> list[list[Delivery]]:
    """What the topic holds, as it stands there: with the broker's offsets and times."""
    with closing(KafkaSource(settings_of(bootstrap, name), CODEC)) as source:
        source.assign(dict.fromkeys(range(partitions), 0))
        found = read_until(source, count)
    return [[delivery for delivery in found if delivery.partition == partition] for partition in range(partitions)]
