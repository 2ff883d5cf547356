"""Records that nobody can read, on their way to the dead-letter topic."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from runfold.core.errors import LogError
from runfold.core.events import Unreadable
from runfold.ports import Log

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class Poison:
    """A queue. The partition's position stays before its head, so that a crash loses none: a record may be buried twice."""

    def __init__(self, to: Log, buried: Callable[[Unreadable], None]) -> None:
        self._log, self._buried = to, buried
        self._waiting: deque[Unreadable] = deque()

    def add(self, record: Unreadable) -> bool:
        """Whether nobody is burying now, so that `bury` is due."""
        self._waiting.append(record)
        return len(self._waiting) == 1

    def __len__(self) -> int:
        return len(self._waiting)

    def before(self, offset: int) -> int:
        """``offset``, or where the first record is that still waits."""
        return self._waiting[0].offset if self._waiting else offset

    async def bury(self) -> None:
        """Return when nothing waits any more."""
        while self._waiting:
            record = self._waiting[0]
            try:
                await self._log.dead_letter(record)
                self._buried(self._waiting.popleft())
            except LogError as error:
                log.warning("%d/%d: the dead-letter topic does not take it: %s", record.partition, record.offset, error)
                await asyncio.sleep(AGAIN_SECONDS)
