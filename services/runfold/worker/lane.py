"""The append path of one owned partition: fence, marker, then one transaction after the other.

A transaction takes all that is waiting (group commit), and the next one begins when the last record of the one before has been
read back, not when its commit was acknowledged: an acknowledgement proves nothing, and the wait is also the faster way.

Every error is the same reset: drop the appender, make sure that the partition is still ours, take over again. What was under way
is forgotten here; the partition knows from the log what became of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runfold.core.errors import Expelled, Fenced, LogError, LogUnavailable
from runfold.core.events import LeaseAcquired, OwnerEvent
from runfold.ports import Appender, Grant, Position
from runfold.worker.resources import Resources
from runfold.worker.size import weight

MOST_BYTES = 900_000  # of one transaction: below 1 MB it is one batch, all or nothing also after a broker crash
MOST_EVENTS = 2_000
IDLE_SECONDS = 1.0  # then a position that moved without any event is written on its own
BACKOFF_SECONDS = 0.05, 1.0  # after an error that says nothing about ownership: first, longest


class Owner(Protocol):
    """What the lane needs of its partition."""

    def position(self) -> Position: ...

    async def fenced(self) -> None:
        """Called after each fence, before its marker: learn where the owners before us have left the group's position."""
        ...

    def interrupted(self, error: LogError) -> None:
        """The lease is in doubt: act on nothing until the next marker is read back."""
        ...


class Lane:
    """Append what `submit` brings, for as long as the partition is ours. Lives on the loop."""

    def __init__(self, partition: int, resources: Resources, grant: Callable[[], Grant], owner: Owner) -> None:
        self.partition, self.resources, self.grant, self.owner = partition, resources, grant, owner
        self.marker: LeaseAcquired | None = None  # under way or current
        self._pending: deque[OwnerEvent] = deque()  # not in a transaction yet
        self._unread: deque[OwnerEvent] = deque()  # in the current one, not read back
        self._stir, self._echo, self._granted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._written = Position()  # what the log has of our position
        self._refused = b""  # the proof of the last append
        self._backoff = BACKOFF_SECONDS[0]
        self.heard = 0  # records read so far: a fold that goes on is no silence
        self._served = False  # the marker is back: there is nothing to be read before our own any more

    # ---- for the partition

    def submit(self, event: OwnerEvent) -> None:
        """Put an event into the next transaction."""
        self._pending.append(event)
        self._stir.set()

    def moved(self) -> None:
        """Our position moved, perhaps without anything to submit."""
        self._stir.set()

    def granted(self) -> None:
        """The keeper spoke: `grant` has news."""
        self._granted.set()

    def read_back(self, event: object) -> bool:
        """Tell the lane of each event that was read; whether it is the next one of its own."""
        self.heard += 1
        if not self._unread or self._unread[0] is not event:
            return False
        self._unread.popleft()
        if not self._unread:
            self._echo.set()
        return True

    def withdraw(self, unwanted: Callable[[OwnerEvent], bool]) -> list[OwnerEvent]:
        """Take back events that are in no transaction yet."""
        out = [event for event in self._pending if unwanted(event)]
        self._pending = deque(event for event in self._pending if not unwanted(event))
        return out

    @property
    def idle(self) -> bool:
        return not self._pending and not self._unread

    # ---- the loop

    async def run(self) -> None:
        """Own the partition until cancelled."""
        while True:
            appender: Appender | None = None
            try:
                appender = await self.resources.log.fence(self.partition)  # 1. nobody before us can commit any more
                await self.owner.fenced()
                await self._commit(appender, [self._mark()])  # 2. read back, it proves that the fold is complete
                self._backoff, self._served = BACKOFF_SECONDS[0], True
                await self._serve(appender)  # 3. only now act
            except LogError as error:
                self._forget(error)
                await self._make_sure(error)
            finally:
                if appender is not None:
                    appender.drop()

    def _mark(self) -> LeaseAcquired:
        self.marker = LeaseAcquired(partition=self.partition, worker=self.resources.worker, build=self.resources.build)
        return self.marker

    async def _serve(self, appender: Appender) -> None:
        while True:
            await self._something_to_write()
            await self._commit(appender, self._take())

    async def _something_to_write(self) -> None:
        """Events, or a position that has been ahead of the log's for a while."""
        ahead_since: float | None = None
        while not self._pending:
            self._stir.clear()
            if self._written == self.owner.position():
                ahead_since = None
            elif ahead_since is None:
                ahead_since = self._now()
            try:
                async with asyncio.timeout_at(None if ahead_since is None else ahead_since + IDLE_SECONDS):
                    await self._stir.wait()
            except TimeoutError:
                return

    def _take(self) -> list[OwnerEvent]:
        batch: list[OwnerEvent] = []
        room = MOST_BYTES
        while self._pending and len(batch) < MOST_EVENTS:
            room -= weight(self._pending[0])
            if batch and room < 0:
                break
            batch.append(self._pending.popleft())
        return batch

    async def _commit(self, appender: Appender, batch: list[OwnerEvent]) -> None:
        """One transaction, from its first record to the echo of its last."""
        position, self._refused = self.owner.position(), self.grant().proof
        self._unread.extend(batch)
        self._echo.clear()
        began = self._now()
        await appender.append(batch, position, self._refused)
        acknowledged = self._now()
        self._written = position
        if batch:
            await self._read_back_all()
            self.resources.observer.committed(self.partition, len(batch), acknowledged - began, self._now() - acknowledged)

    async def _read_back_all(self) -> None:
        while not self._echo.is_set():
            heard = self.heard
            try:
                async with asyncio.timeout(self.resources.echo_seconds):
                    await self._echo.wait()
            except TimeoutError:
                if self._served or heard == self.heard:
                    raise LogUnavailable(
                        f"partition {self.partition}: a commit was acknowledged but not read back within "
                        f"{self.resources.echo_seconds} s; taking over again to learn what became of it"
                    ) from None

    def _forget(self, error: LogError) -> None:
        self._pending.clear()
        self._unread.clear()
        self._served = False
        self.marker = None  # should it still come back, it says nothing of the lease that is in doubt now
        self.resources.observer.reset(self.partition, error)
        self.owner.interrupted(error)

    async def _make_sure(self, error: LogError) -> None:
        """Wait until taking over again can only fence a stale owner, never the rightful one.

        Fenced: only with a grant issued when the keeper had time to hear of a rebalance. Expelled: only with other metadata than
        the refused. Anything else says nothing about ownership: back off and try.
        """
        failed = self._now()
        if not isinstance(error, Fenced | Expelled):
            await asyncio.sleep(self._backoff)
            self._backoff = min(self._backoff * 2, BACKOFF_SECONDS[1])
        settled = failed + 2 * self.resources.beat_seconds if isinstance(error, Fenced) else 0.0
        while self.grant().at < settled or not self._may_append(error):
            self._granted.clear()
            await self._granted.wait()

    def _may_append(self, error: LogError) -> bool:
        grant = self.grant()
        fresh = not isinstance(error, Expelled) or grant.proof != self._refused
        return self.partition in grant.partitions | grant.leaving and bool(grant.proof) and fresh

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
