"""Records that the fold of a run had to leave out. Nothing is decided on half a state.

- One that a newer build can read (UNKNOWN_SCHEMA) *parks* its run: nothing is written for it, and the partition's low watermark
  stays where a newer worker can fold all of it. So does one that a run may begin with. Where commands alone are missing, which
  change no total, a cancel still ends the run: anybody may write a command that no build will ever read.
- One in an owner's name that nobody can read *spoils* its run: its owner suspends it, once, and a person decides.
- Any other is a matter of no run.

A gap closes with a snapshot: whoever wrote it had read the record. All is derived from the log, so a restart forgets no gap.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from runfold.core.decisions import Suspend
from runfold.core.events import (
    Problem,
    Reason,
    Record,
    RunFinished,
    RunRequested,
    RunSnapshotted,
    RunSuspended,
    Status,
    Unreadable,
)
from runfold.core.run import Run
from runfold.core.run_ids import is_run_id
from runfold.core.shard import Ignored, Shard

LONGEST = 500  # characters of a suspension's detail
MOST_REQUESTS = 100  # of a schema that this build does not know, waiting in one partition for a build that does
MOST_CARRIED = 10_000  # runs of the same that an owner has written of


@dataclass(slots=True)
class Gap:
    """The first and the last record that a run is left without; whether one of them is an owner's."""

    first: Unreadable
    last: Unreadable
    from_owner: bool = False


class Gaps:
    """Of the runs of one partition. `left_out` and `read` are told of each delivery, in order, after ``shard`` was."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._parked: dict[str, Gap] = {}
        self._spoiled: dict[str, Gap] = {}
        self._asked, self._carried = set[str](), set[str]()  # parked runs that nobody here has seen begin: by whose record

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._parked or run_id in self._spoiled

    @property
    def parked(self) -> Set[str]:
        """Runs that only a newer build can go on with."""
        return self._parked.keys()

    def is_parked(self, run_id: str) -> bool:
        return run_id in self._parked

    def forbids(self, run: Run) -> bool:
        """Whether this build must write nothing for ``run``."""
        gap = self._parked.get(run.id)
        return gap is not None and (gap.from_owner or not run.inbox)

    def shown(self, run: Run) -> Run:
        """``run`` as a view of it has to show it that lacks a record: what else it waits for is not known."""
        if (gap := self._parked.get(run.id)) is None:
            return run
        last = gap.last
        detail = f"the record at {last.partition}/{last.offset} is for a newer version to read: {last.detail}"
        stands = (Status.SUSPENDED, Reason.NEEDS_NEWER_VERSION)
        return replace(run, status=stands[0], reason=stands[1], detail=detail[:LONGEST], waiting_tool_use_id=None)

    @property
    def low(self) -> int:
        """Where a fold must start to know all that there is to know of open runs, for a build that can read it."""
        oldest = next(iter(self._parked.values()), None)  # they stand in the order of their first records
        return self._shard.low if oldest is None else min(self._shard.low, oldest.first.offset)

    def left_out(self, delivery: Unreadable) -> Reason | None:
        """What becomes of the run that is left without ``delivery``: NEEDS_NEWER_VERSION, UNREADABLE_RECORD, or nothing."""
        run_id = run_of(delivery)
        run = self._shard.runs.get(run_id)
        if delivery.problem is Problem.UNKNOWN_SCHEMA:
            if run is None and not self._may_begin(delivery, run_id):
                return None
            if run is None:
                self._begin(delivery, run_id)
            _note(self._parked, run_id, delivery)
            return Reason.NEEDS_NEWER_VERSION
        if run is None or not delivery.from_owner:
            return None
        if not _waits(run):
            _note(self._spoiled, run_id, delivery)
        return Reason.UNREADABLE_RECORD

    def _may_begin(self, delivery: Unreadable, run_id: str) -> bool:
        """Whether it may be the first record of an open run: what an owner carried forward, or a newer kind of request.

        Each one holds the low watermark, and anybody may write requests, or an owner's header: so many wait, and no more.
        """
        if not is_run_id(run_id) or self._shard.has_ended(run_id):
            return False
        if run_id in self._parked:
            return True
        if delivery.from_owner:
            return len(self._carried) < MOST_CARRIED
        return delivery.type_header == RunRequested.__name__.encode() and len(self._asked) < MOST_REQUESTS

    def _begin(self, delivery: Unreadable, run_id: str) -> None:
        if delivery.from_owner:
            self._asked.discard(run_id)
            self._carried.add(run_id)
        elif run_id not in self._carried:
            self._asked.add(run_id)

    def read(self, record: Record, outcome: Run | Ignored) -> None:
        """A record that closes gaps, or does not."""
        if not (self._parked or self._spoiled) or outcome is Ignored.STALE_EPOCH:
            return
        match record.event:
            case RunFinished(run_id=run_id):
                self._unpark(run_id)
                self._spoiled.pop(run_id, None)
            case RunSuspended(run_id=run_id, reason=Reason.UNREADABLE_RECORD):
                self._spoiled.pop(run_id, None)
            case RunSnapshotted() as event if isinstance(outcome, Run):
                if _covers(event, self._parked):
                    self._unpark(event.run_id)
                if _covers(event, self._spoiled):
                    del self._spoiled[event.run_id]
            case _:
                pass

    def _unpark(self, run_id: str) -> None:
        self._parked.pop(run_id, None)
        self._asked.discard(run_id)
        self._carried.discard(run_id)

    def suspension(self, run: Run, told: int) -> Suspend | None:
        """What an owner must write before anything else for a run that is spoiled. ``run``: with all that is written already;
        ``told``: the offset up to which suspensions that are on their way speak of records."""
        gap = self._spoiled.get(run.id)
        if gap is None or gap.last.offset <= told or _waits(run) or run.status.final:
            return None
        left = gap.last
        detail = f"the record at {left.partition}/{left.offset} cannot be read, the run can go on without it: {left.detail}"
        return Suspend(Reason.UNREADABLE_RECORD, detail[:LONGEST])


def run_of(delivery: Unreadable) -> str:
    """The run that its key names, if it names one."""
    return (delivery.key or b"").decode("ascii", "replace")


def _waits(run: Run) -> bool:
    return run.status is Status.SUSPENDED and run.reason is Reason.UNREADABLE_RECORD


def _note(gaps: dict[str, Gap], run_id: str, delivery: Unreadable) -> None:
    slim = replace(delivery, value=None)  # where it is will do
    gap = gaps.setdefault(run_id, Gap(slim, slim))
    gap.last, gap.from_owner = slim, gap.from_owner or delivery.from_owner


def _covers(event: RunSnapshotted, gaps: dict[str, Gap]) -> bool:
    """Whether its writer had read all that the run lacks here, if it lacks anything."""
    gap = gaps.get(event.run_id)
    return gap is not None and gap.last.offset <= event.last_offset
