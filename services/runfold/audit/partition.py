"""What holds of a partition: order, leases, which run a record belongs to; and the audit of its runs, record by record.

Memory: the traces of open runs, and 16 bytes (100 in Python) for each that ended.
"""

from collections.abc import Iterator
from typing import get_args

from runfold.audit.findings import Check, Violation, name_of
from runfold.audit.invariants import CHECKS
from runfold.audit.trace import Trace
from runfold.core.events import (
    Command,
    CommandRejected,
    Delivery,
    Event,
    LeaseAcquired,
    Problem,
    Record,
    Rejection,
    RunEvent,
    RunFinished,
    RunRequested,
    RunSnapshotted,
    RunSuspended,
    Unreadable,
)

BACKWARDS_MS = 60_000  # a new leader's clock may be a little behind; more than this is worth a warning

_COMMANDS = frozenset(get_args(Command))


def readable(audit: "PartitionAudit", delivery: Delivery) -> str | None:
    """Every record can be read, has the key of its run, and stands on the partition of that key."""
    return f"{delivery.problem}: {delivery.detail}" if isinstance(delivery, Unreadable) else None


def offsets_grow(audit: "PartitionAudit", delivery: Delivery) -> str | None:
    """Offsets grow from record to record."""
    return None if delivery.offset >= audit.next_offset else f"it follows offset {audit.next_offset - 1}"


def no_stale_epoch(audit: "PartitionAudit", event: RunEvent) -> str | None:
    """No event is written under a lease that a newer LeaseAcquired has replaced."""
    return None if event.epoch >= audit.epoch else f"its epoch is {event.epoch}, the lease since {audit.epoch} is newer"


def epochs_are_leases(audit: "PartitionAudit", event: RunEvent) -> str | None:
    """The epoch of an event is the offset of a LeaseAcquired before it, on its partition."""
    if event.epoch <= audit.epoch or audit.may_be_older(event.epoch):
        return None
    return f"its epoch is {event.epoch}, and no LeaseAcquired stands there"


def requested_first(audit: "PartitionAudit", event: RunEvent) -> str | None:
    """An event belongs to a run that was requested before."""
    known = audit.partial or event.run_id in audit.open or event.run_id in audit.blind or audit.has_ended(event.run_id)
    return None if known else "no RunRequested of the run stands before"


def one_end(audit: "PartitionAudit", event: RunEvent) -> str | None:
    """A run has one RunFinished, and no event but CommandRejected after it."""
    over = audit.has_ended(event.run_id) and not isinstance(event, CommandRejected)
    return f"{type(event).__name__} follows the run's RunFinished" if over else None


def rejections_follow_the_end(audit: "PartitionAudit", event: RunEvent) -> str | None:
    """A command is rejected for coming after the end of a run only when the run has ended."""
    late = isinstance(event, CommandRejected) and event.reason is Rejection.RUN_FINISHED
    return "RUN_FINISHED is said of an open run" if late and event.run_id in audit.open else None


def fold_agrees(trace: Trace, event: Event) -> str | None:
    """The fold takes every event that breaks none of the other invariants."""
    return f"the fold ignores this {type(event).__name__}"


OF_DELIVERIES: tuple[Check, ...] = (offsets_grow, readable)
OF_EVENTS: tuple[Check, ...] = (no_stale_epoch, epochs_are_leases, requested_first, one_end, rejections_follow_the_end)
_IDLE = (CommandRejected, RunSnapshotted, RunSuspended)  # the fold may pass these over


class PartitionAudit:
    """Audit the records of one partition in offset order; ``start`` is where the log begins, None when leases are left out."""

    def __init__(self, partition: int, start: int | None = 0) -> None:
        self.partition, self.start = partition, start
        self.partial = start != 0  # runs may have begun before
        self.next_offset = start or 0
        self.epoch = -1
        self.open: dict[str, Trace] = {}
        self.blind: set[str] = set()  # runs with a record that only a newer build can read
        self.records = self.runs = self.unread = self.backwards = 0
        self._ended: set[bytes] = set()
        self._newest = 0
        self._leases = False

    def take(self, delivery: Delivery) -> Violation | None:
        """What the next record breaks, if anything."""
        self.records += 1
        found = _first(OF_DELIVERIES, self, delivery)
        self._watch_the_clock(delivery)
        if isinstance(delivery, Unreadable):
            self._close_an_eye(delivery)
        elif found is None or found[0] is not offsets_grow:
            found = self._event(delivery)
        self.next_offset = max(self.next_offset, delivery.offset + 1)
        return None if found is None else _violation(delivery, *found)

    def has_ended(self, run_id: str) -> bool:
        return _short(run_id) in self._ended

    @property
    def ended(self) -> int:
        return len(self._ended)

    def may_be_older(self, epoch: int) -> bool:
        """Whether the lease with this epoch may stand before the log's beginning, or be left out."""
        return self.start is None or (self.partial and not self._leases and epoch < self.start)

    def _watch_the_clock(self, delivery: Delivery) -> None:
        self.backwards += delivery.timestamp < self._newest - BACKWARDS_MS
        self._newest = max(self._newest, delivery.timestamp)

    def _close_an_eye(self, delivery: Unreadable) -> None:
        """A run with a record from the future cannot be judged any further."""
        self.unread += 1
        run_id = (delivery.key or b"").decode("ascii", "replace")
        if delivery.problem is Problem.UNKNOWN_SCHEMA and not self.has_ended(run_id):
            self.open.pop(run_id, None)
            self.blind.add(run_id)

    def _event(self, record: Record) -> "Found | None":
        event = record.event
        if isinstance(event, LeaseAcquired):
            self.epoch, self._leases = record.offset, True
            return None
        if type(event) in _COMMANDS:
            self._command(record)
            return None
        found = _first(OF_EVENTS, self, event)
        if found is not None and found[0] is not rejections_follow_the_end:
            return found
        self.epoch = event.epoch  # type: ignore[union-attr]  # commands are gone
        return found or self._run_event(record)

    def _command(self, record: Record) -> None:
        run_id = record.event.run_id  # type: ignore[union-attr]  # a lease is no command
        if (trace := self.open.get(run_id)) is not None:
            trace.fold(record)
            trace.follow(record)
        elif isinstance(record.event, RunRequested) and not self.has_ended(run_id) and run_id not in self.blind:
            self.open[run_id] = Trace.begin(record, record.event)
            self.runs += 1

    def _run_event(self, record: Record) -> "Found | None":
        event = record.event
        trace = self.open.get(event.run_id)  # type: ignore[union-attr]  # leases are gone
        if trace is None:  # it began before the log does, or has ended, or cannot be judged
            return None
        found = _first(CHECKS.get(type(event), ()), trace, event)
        changed = trace.fold(record)
        if found is None and not changed and not isinstance(event, _IDLE):
            found = fold_agrees, fold_agrees(trace, event) or ""
        if found is None or changed:  # after a fault, go where every reader goes
            trace.follow(record)
        if isinstance(event, RunFinished) and changed:
            del self.open[event.run_id]
            self._ended.add(_short(event.run_id))
        return found


Found = tuple[Check, str]


def _first(checks: tuple[Check, ...], subject: object, thing: object) -> Found | None:
    for check in checks:
        if (detail := check(subject, thing)) is not None:
            return check, detail
    return None


def _violation(delivery: Delivery, check: Check, detail: str) -> Violation:
    return Violation(name_of(check), delivery.partition, delivery.offset, _run_of(delivery), detail)


def _run_of(delivery: Delivery) -> str | None:
    if isinstance(delivery, Record):
        return None if isinstance(delivery.event, LeaseAcquired) else delivery.event.run_id
    return delivery.key.decode("utf-8", "replace")[:100] if delivery.key else None


def _short(run_id: str) -> bytes:
    return bytes.fromhex(run_id.replace("-", "")) if len(run_id) == 36 else run_id.encode()


def all_checks() -> Iterator[Check]:
    """Every invariant, once, in the order of the lists."""
    lists = (OF_DELIVERIES, OF_EVENTS, *CHECKS.values(), (fold_agrees,))
    yield from dict.fromkeys(check for checks in lists for check in checks)
