"""The loop's side of reading one partition: a queue that the reader thread fills."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from runfold.core.errors import LogError
from runfold.core.events import Delivery


class KafkaReading:
    """A `runfold.ports.Reading`. ``taken`` counts the bytes that left the queue; the reader compares it with what it put in."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._batches: deque[tuple[list[Delivery], int]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: LogError | None = None
        self.taken = 0
        self.closed = False

    @property
    def waiting(self) -> int:
        """Records that have arrived and that nobody took."""
        return sum(len(batch) for batch, _ in self._batches)

    def __aiter__(self) -> AsyncIterator[Sequence[Delivery]]:
        return self

    async def __anext__(self) -> Sequence[Delivery]:
        while not self._batches:
            if self._error is not None:
                raise self._error
            if self.closed:
                raise StopAsyncIteration
            await self._wait()
        batch, self.taken = self._batches.popleft()
        return batch

    def arrived(self, batch: list[Delivery], put: int) -> None:
        """``put``: how many bytes the reader has put in with this batch."""
        if not self.closed:
            self._batches.append((batch, put))
            self._wake()

    def failed(self, error: LogError) -> None:
        """There will be no more: iteration raises ``error`` after what has arrived."""
        self._error = error
        self._wake()

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._batches.clear()
            self._stop()
            self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
