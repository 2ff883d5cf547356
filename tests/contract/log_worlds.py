"""The memory world and the Kafka world of the contract suite."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.config import Settings
from runfold.core.events import OwnerEvent
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands, KafkaLive, KafkaLiveReader, KafkaLog, KafkaMembership, KafkaTail, create_topic
from runfold.log.kafka.message import Headers, headers_of
from runfold.log.memory import (
    MemoryBroker,
    MemoryCommands,
    MemoryLive,
    MemoryLiveReader,
    MemoryLog,
    MemoryMembership,
    MemoryTail,
)
from runfold.log.wire import encoded
from runfold.ports import Commands, Live, LiveReader, Log, Position, Tail
from tests.contract.log_suite import PARTITIONS, PATIENCE, Seat, World


class MemoryWorld:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.broker = MemoryBroker(PARTITIONS)

    async def log(self) -> Log:
        log = MemoryLog(self.broker)
        self._stack.push_async_callback(log.close)
        return log

    async def seat(self) -> Seat:
        seat = await Seat(MemoryMembership(self.broker.group), None).join()
        self._stack.push_async_callback(seat.close)
        return seat

    async def commands(self) -> Commands:
        return MemoryCommands(self.broker)

    async def tail(self) -> Tail:
        return MemoryTail(self.broker)

    async def live(self) -> Live:
        return MemoryLive(self.broker)

    async def live_reader(self, run_id: str) -> LiveReader:
        return MemoryLiveReader(self.broker, run_id)

    async def put(self, partition: int, key: bytes | None, value: bytes | None, type_header: bytes | None = None) -> None:
        self.broker.put(partition, key, value, type_header)

    async def hang(self, partition: int, events: Sequence[OwnerEvent], proof: bytes = b"") -> None:
        async def die(partition: int, events: Sequence[OwnerEvent]) -> None:
            raise ProcessLookupError("killed")

        before, self.broker.before_commit = self.broker.before_commit, die
        appender = await MemoryLog(self.broker).fence(partition)
        with suppress(ProcessLookupError):
            await appender.append(events, Position(), self.broker.group.proof("any"))
        self.broker.before_commit = before

    async def dead_letters(self) -> list[tuple[int, int, bytes | None]]:
        return [(letter.partition, letter.offset, letter.value) for letter in self.broker.dead_letters]


class KafkaWorld:
    def __init__(self, stack: AsyncExitStack, bootstrap: str) -> None:
        self._stack = stack
        name = uuid4().hex[:8]
        self.settings = Settings(bootstrap=bootstrap, topic=f"contract-{name}", group=f"group-{name}", heartbeat_ms=100)
        self.codec = Codec()
        self._hanging: list[Producer] = []
        self.dropped: list[float] = []  # when pieces of live text were

    async def log(self) -> Log:
        log = await KafkaLog.open(self.settings, self.codec)
        self._stack.push_async_callback(log.close)
        return log

    async def seat(self) -> Seat:
        seat = await Seat(KafkaMembership(self.settings), ThreadPoolExecutor(1, "member")).join()
        self._stack.push_async_callback(seat.close)
        return seat

    async def commands(self) -> Commands:
        commands = KafkaCommands(self.settings, self.codec)
        self._stack.push_async_callback(commands.close)
        return commands

    async def tail(self) -> Tail:
        tail = await KafkaTail.open(self.settings, self.codec)
        self._stack.push_async_callback(tail.close)
        return tail

    async def live(self) -> Live:
        return KafkaLive(self.settings, lambda: self.dropped.append(time.monotonic()))

    async def live_reader(self, run_id: str) -> LiveReader:
        reader = await asyncio.to_thread(KafkaLiveReader.open, self.settings, run_id, 0)
        assert reader is not None, "there is no side topic"
        self._stack.callback(reader.close)
        return reader

    async def put(self, partition: int, key: bytes | None, value: bytes | None, type_header: bytes | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap, "linger.ms": 0})
        headers: Headers | None = [("runfold-type", type_header)] if type_header is not None else None
        producer.produce(self.settings.topic, value, key, partition=partition, headers=headers)
        assert await asyncio.to_thread(producer.flush, PATIENCE) == 0

    async def hang(self, partition: int, events: Sequence[OwnerEvent], proof: bytes = b"") -> None:
        settings = self.settings
        identity = f"{settings.namespace}.{settings.group}.{settings.topic}.{partition}"
        producer = Producer({"bootstrap.servers": settings.bootstrap, "transactional.id": identity, "linger.ms": 0})
        await asyncio.to_thread(producer.init_transactions, PATIENCE)
        producer.begin_transaction()
        for key, value in encoded(events, self.codec):
            producer.produce(settings.topic, value, key, partition=partition)
        assert await asyncio.to_thread(producer.flush, PATIENCE) == 0
        if proof:
            offset = TopicPartition(settings.topic, partition, 99, "low=99")
            await asyncio.to_thread(producer.send_offsets_to_transaction, [offset], proof, PATIENCE)
        self._hanging.append(producer)  # its end would not abort, but a thread less is a thread less

    async def dead_letters(self) -> list[tuple[int, int, bytes | None]]:
        return await asyncio.to_thread(self._dead_letters)

    def _dead_letters(self) -> list[tuple[int, int, bytes | None]]:
        consumer = Consumer({"bootstrap.servers": self.settings.bootstrap, "group.id": "unused", "enable.partition.eof": True})
        topic, letters, ended = f"{self.settings.topic}.dead", [], 0
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error():
                ended += 1
            else:
                headers = dict(headers_of(message))
                place = [int(headers[f"runfold-{name}"] or b"") for name in ("partition", "offset")]
                letters.append((place[0], place[1], message.value()))
        consumer.close()
        return letters


@asynccontextmanager
async def memory_world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield MemoryWorld(stack)


@asynccontextmanager
async def kafka_world(bootstrap: str) -> AsyncIterator[KafkaWorld]:
    async with AsyncExitStack() as stack:
        world = KafkaWorld(stack, bootstrap)
        await asyncio.to_thread(create_topic, world.settings, PARTITIONS, 1)
        yield world
