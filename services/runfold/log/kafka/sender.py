"""Producing outside transactions: what is sent is known to be on all in-sync replicas when `send` returns."""

import asyncio
from contextlib import suppress
from threading import Thread

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from runfold.config import Settings
from runfold.core.errors import LogUnavailable, TooLarge
from runfold.log.kafka import client
from runfold.log.kafka.failures import kafka_error
from runfold.log.kafka.message import Headers

SEND_SECONDS = 9.5
_POLL_SECONDS = 0.1
_FLUSH_SECONDS = 1.0


class Sender:
    """An idempotent producer, made by the first `send`, and the thread that waits for its delivery reports."""

    def __init__(self, settings: Settings) -> None:
        self._config = client.sender(settings)
        self._loop = asyncio.get_running_loop()
        self._producer: Producer | None = None
        self._closed = False

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int = -1
    ) -> tuple[int, int]:
        """(partition, offset) of the record; by its key where ``partition`` is -1. Raises `LogUnavailable`, `TooLarge`."""
        producer = self._started()
        future: asyncio.Future[tuple[int, int]] = self._loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, error, message)

        try:
            producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)
            async with asyncio.timeout(SEND_SECONDS):
                return await future
        except (BufferError, KafkaException, TimeoutError) as error:
            if (cause := kafka_error(error)) is not None and cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise TooLarge(f"topic {topic}: nothing was written, the record must be smaller: {cause.str()}") from None
            reason = f"{type(error).__name__} {error}".strip()
        raise LogUnavailable(f"topic {topic}: the record was not acknowledged, it may be there or not: {reason}")

    async def close(self) -> None:
        """End. What nobody has waited for is given a moment to arrive."""
        self._closed = True

    def _started(self) -> Producer:
        if self._closed:
            raise LogUnavailable("this sender was closed")
        if self._producer is None:
            self._producer = client.make(Producer, self._config)
            Thread(target=self._serve, args=(self._producer,), name="runfold-sender", daemon=True).start()
        return self._producer

    def _serve(self, producer: Producer) -> None:
        while not self._closed:
            producer.poll(_POLL_SECONDS)
        producer.flush(_FLUSH_SECONDS)
        self._producer = None


def _settle(future: asyncio.Future[tuple[int, int]], error: KafkaError | None, message: Message) -> None:
    if future.done():
        return
    if error is None:
        future.set_result((message.partition() or 0, message.offset() or 0))
    else:
        future.set_exception(KafkaException(error))
