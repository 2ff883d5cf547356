"""One thread that reads all owned partitions with one consumer, and hands what it reads to the loop.

The loop speaks to the thread through a queue that is looked at between two polls; the thread speaks to the loop once per poll,
for all partitions together.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from confluent_kafka import Consumer

from runfold.config import Settings
from runfold.core.errors import LogError, LogUnavailable, RunfoldError
from runfold.core.events import Delivery
from runfold.log.codec import Codec
from runfold.log.echo import Echo
from runfold.log.kafka import client
from runfold.log.kafka.failures import log_error
from runfold.log.kafka.intake import Assigned, Intake
from runfold.log.kafka.reading import KafkaReading
from runfold.log.kafka.topic import partition_count

OPEN_SECONDS = 10.0
IDLE_SECONDS = 0.02  # the longest that a request of the loop waits
ENDS_SECONDS = 0.25  # between two looks at where the log ends
_log = logging.getLogger("runfold.kafka")


class Reader:
    """Reads from `open` until `close`. Its methods belong to the loop, but for those below the line."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._settings, self._codec = settings, codec
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[int] = self._loop.create_future()
        self._requests: SimpleQueue[Callable[[Intake], None]] = SimpleQueue()
        self._readings: dict[int, KafkaReading] = {}
        self._stopping = False
        self._failure: LogError | None = None
        self.ends: Mapping[int, int] = {}  # of the partitions being read, see `Intake.ends`
        self.looked_at = 0.0  # when they were, in seconds of CLOCK_MONOTONIC: the thread's sign of life

    async def open(self) -> int:
        """Start, connect, and count the topic's partitions. Raises `LogUnavailable`, `TopicMismatch`."""
        Thread(target=self._run, name="runfold-reader", daemon=True).start()
        try:
            async with asyncio.timeout(OPEN_SECONDS + 2):
                return await self._opened
        except TimeoutError:
            raise LogUnavailable(f"expected a broker at {self._settings.bootstrap}, none answers") from None

    def read(self, partition: int, offset: int, echo: Echo) -> KafkaReading:
        if (last := self._readings.get(partition)) and not last.closed:
            raise ValueError(f"partition {partition} is being read already: close that reading first")
        if self._failure is not None:
            raise self._failure
        reading = KafkaReading(lambda: self._requests.put(lambda intake: intake.unassign(assigned)))
        assigned = Assigned(partition, offset, reading, echo)
        self._requests.put(lambda intake: intake.assign(assigned))
        self._readings[partition] = reading
        return reading

    async def close(self) -> None:
        """Stop, without waiting for the broker."""
        self._stopping = True
        for reading in self._readings.values():
            await reading.close()

    def _deliver(self, handovers: list[tuple[KafkaReading, list[Delivery], int, LogError | None]]) -> None:
        for reading, batch, put, error in handovers:
            if batch:
                reading.arrived(batch, put)
            if error is not None:
                reading.failed(error)

    def _fail(self, error: RunfoldError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
        self._failure = error if isinstance(error, LogError) else None
        for reading in self._readings.values():
            reading.failed(LogUnavailable(f"the reader has ended: {error}"))

    # ---- on the thread

    def _run(self) -> None:
        try:
            consumer = client.make(Consumer, client.reader(self._settings))
        except RunfoldError as error:
            self._tell(self._fail, error)
            return
        try:
            partitions = partition_count(consumer, self._settings.topic, OPEN_SECONDS)
            self._tell(_set, self._opened, partitions)
            self._read(Intake(consumer, self._settings.topic, partitions, self._codec))
        except RunfoldError as error:
            self._tell(self._fail, error)
        except Exception as error:
            _log.exception("the reader has ended")
            self._tell(self._fail, log_error(error, "reader"))
        finally:
            consumer.close()

    def _read(self, intake: Intake) -> None:
        while not self._stopping:
            if (now := time.monotonic()) > self.looked_at + ENDS_SECONDS:
                self.ends, self.looked_at = intake.ends(), now
            with suppress(Empty):
                while True:
                    self._requests.get_nowait()(intake)
            if touched := intake.poll(IDLE_SECONDS):
                handovers = []
                for assigned in touched:
                    handovers.append((assigned.reading, assigned.batch, assigned.put, assigned.error))
                    assigned.batch, assigned.error = [], None
                self._tell(self._deliver, handovers)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            self._stopping = True


def _set(future: asyncio.Future[int], result: int) -> None:
    if not future.done():
        future.set_result(result)
