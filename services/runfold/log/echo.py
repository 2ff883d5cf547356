"""Recognises what this process appended when it is read back, so that its own events need no decoding.

Each appender has a token and numbers its records; a header carries both. The appender holds its events until the reader takes
them by that header. An event that never comes back (its transaction was aborted) is forgotten when the next appender's
first one does: nothing older can follow it.
"""

from collections.abc import Sequence
from threading import Lock
from uuid import uuid4

from runfold.core.events import OwnerEvent

_HELD_AT_MOST = 50_000  # per appender; beyond it nobody reads them, and those who do can decode


class Lane:
    """The events of one appender that were not read back yet."""

    def __init__(self) -> None:
        self.token = uuid4().hex.encode()
        self.held: dict[object, OwnerEvent] = {}
        self._count = 0

    def hold(self, events: Sequence[OwnerEvent]) -> list[bytes]:
        """Keep ``events``; the header of each."""
        if len(self.held) > _HELD_AT_MOST:
            self.held.clear()
        headers = [b"%b:%d" % (self.token, n) for n in range(self._count, self._count + len(events))]
        self._count += len(events)
        self.held.update(zip(headers, events, strict=True))
        return headers


class Echo:
    """The lanes of one partition in one process. Lanes are opened on one thread and taken from on one other."""

    def __init__(self) -> None:
        self._lanes: tuple[Lane, ...] = ()  # replaced, never changed: `take` looks without the lock
        self._lock = Lock()

    def open(self) -> Lane:
        """A lane that supersedes the others, which keep their events until its first one is taken."""
        lane = Lane()
        with self._lock:
            self._lanes = (*filter(lambda other: other.held, self._lanes), lane)
        return lane

    def take(self, header: object) -> OwnerEvent | None:
        """The event that was appended with ``header``, once; None if it was not appended here."""
        lanes = self._lanes
        for lane in reversed(lanes):
            if (event := lane.held.pop(header, None)) is not None:
                if lane is not lanes[0]:
                    self._forget_before(lane)
                return event
        return None

    def _forget_before(self, lane: Lane) -> None:
        with self._lock:
            if lane in self._lanes:
                self._lanes = self._lanes[self._lanes.index(lane) :]
