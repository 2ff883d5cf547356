"""A worker process's partitions: those it is granted it owns, those asked back it drains, those lost it drops."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from runfold.ports import Grant
from runfold.worker.partition import Partition
from runfold.worker.resources import Resources

ABORT_SECONDS = 1.0  # for the log to hear of what was aborted
log = logging.getLogger(__name__)


class Worker:
    """Follows `granted`, on the loop. ``failed`` is told of an exception nobody expected: end the process then."""

    def __init__(self, resources: Resources, drain_seconds: float, failed: Callable[[BaseException], None]) -> None:
        self.resources, self.drain_seconds, self.failed = resources, drain_seconds, failed
        self.partitions: dict[int, Partition] = {}
        self._letting_go: dict[int, asyncio.Task[None]] = {}
        self.grant = Grant()  # the keeper's last word

    @property
    def held(self) -> frozenset[int]:
        """Partitions that something is still being done for, those being drained included."""
        return frozenset(self.partitions)

    def granted(self, grant: Grant) -> None:
        """The keeper's latest word. Quick; what it asks for happens in the background."""
        self.grant = grant
        for number in grant.partitions - self.partitions.keys():
            partition = self.partitions[number] = Partition(number, self.resources, lambda: self.grant, self.failed)
            partition.start()
        for number in self.partitions.keys() - grant.partitions:
            if number not in grant.leaving:
                self.partitions[number].lose()
            self._let_go(number)
        for partition in self.partitions.values():
            partition.granted()

    def _let_go(self, number: int) -> None:
        if number not in self._letting_go:
            task = asyncio.create_task(self._drain_and_close(number))
            self._letting_go[number] = task
            task.add_done_callback(lambda task: self._let_go_ended(number, task))

    async def _drain_and_close(self, number: int) -> None:
        partition = self.partitions[number]
        try:
            if not await _within(self.drain_seconds, partition.drain()):
                log.warning("partition %d: steps did not end within %.0f s, they are aborted", number, self.drain_seconds)
                if not await _within(ABORT_SECONDS, partition.abort()):
                    log.warning("partition %d: the log may not know of it: what was aborted can count as a crash", number)
        finally:
            await partition.close()

    def _let_go_ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._letting_go[number], self.partitions[number]
        self.resources.observer.released(number)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)
        elif number in self.grant.partitions:  # it came back while we were letting it go
            self.granted(self.grant)

    async def close(self) -> None:
        """Drop everything at once."""
        self.granted(Grant())
        await asyncio.gather(*self._letting_go.values(), return_exceptions=True)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True
