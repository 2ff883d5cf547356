"""One partition of the memory broker: its records, its open transaction, its epoch, the group's offset for it."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runfold.core.errors import Fenced
from runfold.log.appending import Outgoing
from runfold.log.wire import RawRecord
from runfold.ports import Position


class State(Enum):
    OPEN = auto()
    PREPARED = auto()  # will be committed; its marker is not written yet
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True, eq=False)
class Transaction:
    first: int  # offset of its first record
    state: State = State.OPEN
    position: Position | None = None  # the group's offset that it carries, once prepared


@dataclass(frozen=True, slots=True)
class Stored:
    raw: RawRecord
    lane: bytes | None = None
    transaction: Transaction | None = None  # None: a command, or whatever else stands outside transactions


class Partition:
    """What the broker knows of one partition. At most one transaction is unfinished: each partition has one transactional id."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.end = 0  # the next offset
        self.epoch = 0
        self.position = Position()
        self.changed = asyncio.Event()  # set, and replaced, whenever readers may see more
        self._stored: list[Stored] = []
        self._unfinished: Transaction | None = None

    @property
    def stable_end(self) -> int:
        """Readers see what stands before this offset."""
        return self._unfinished.first if self._unfinished else self.end

    def visible(self, offset: int) -> Iterator[Stored]:
        """Committed records from ``offset`` to the stable end."""
        stable = self.stable_end
        start = bisect_left(self._stored, offset, key=lambda stored: stored.raw.offset)
        for at in range(start, len(self._stored)):
            stored = self._stored[at]
            if stored.raw.offset >= stable:
                return
            if stored.transaction is None or stored.transaction.state is State.COMMITTED:
                yield stored

    def commands(self, offset: int) -> Iterator[Stored]:
        """Records outside transactions from ``offset``, or the stable end, to the very end."""
        start = max(offset, self.stable_end)
        return (stored for stored in self._stored if stored.transaction is None and stored.raw.offset >= start)

    def put(
        self, key: bytes | None, value: bytes | None, type_header: bytes | None, timestamp: int, lane: bytes | None = None
    ) -> int:
        """Store one record outside any transaction; its offset."""
        self._store(key, value, type_header, timestamp, lane)
        self.wake()
        return self.end - 1

    def fence(self) -> int:
        """A new epoch. What an earlier one left unfinished is finished: committed if that was decided, else aborted."""
        self.epoch += 1
        self.settle()
        if self._unfinished:
            self._finish(self._unfinished, State.ABORTED)
        return self.epoch

    def begin(self, epoch: int) -> Transaction:
        self._check(epoch)
        self._unfinished = Transaction(first=self.end)
        return self._unfinished

    def write(self, transaction: Transaction, records: Sequence[Outgoing], timestamp: int) -> None:
        """Store the records; no reader sees them yet."""
        for record in records:
            self._store(record.key, record.value, record.type_header, timestamp, record.lane_header, transaction)

    def prepare(self, epoch: int, transaction: Transaction, position: Position) -> None:
        """The commit: from now on nothing but time stands between the records and their readers."""
        self._check(epoch)
        transaction.state, transaction.position = State.PREPARED, position

    def settle(self, only: Transaction | None = None) -> None:
        """Write the marker of the prepared transaction, if there is one, and it is ``only``."""
        prepared = self._unfinished
        if prepared and prepared.position is not None and only in (None, prepared):
            self.position = prepared.position
            self._finish(prepared, State.COMMITTED)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _store(
        self,
        key: bytes | None,
        value: bytes | None,
        type_header: bytes | None,
        timestamp: int,
        lane: bytes | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        raw = RawRecord(self.number, self.end, timestamp, key, value, type_header, lane is not None)
        self._stored.append(Stored(raw, lane, transaction))
        self.end += 1

    def _check(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise Fenced(f"partition {self.number}: expected to hold the newest epoch {self.epoch}, got {epoch}")

    def _finish(self, transaction: Transaction, state: State) -> None:
        transaction.state = state
        self.end += 1  # the marker
        self._unfinished = None
        self.wake()
