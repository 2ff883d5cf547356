"""The fold of one partition: every open run in it, and whose records count.

An owner's event counts when it was written under the newest lease: its ``epoch`` is the offset of the last `LeaseAcquired`.
Worker, projector, replay and verification all fold through here, so they skip the same records.
"""

from enum import StrEnum

from runfold.core.events import Command, LeaseAcquired, Record, RunFinished, RunRequested, RunSnapshotted
from runfold.core.run import Run, evolve

REMEMBERED = 20_000  # ended runs per partition whose repeated RunRequested is recognised
OVERLAP = 500  # records before the position that every fold reads again, for the same purpose after a restart


class Ignored(StrEnum):
    """Why a record changed no run."""

    LEASE = "lease"  # it changed the lease
    STALE_EPOCH = "stale_epoch"  # its writer was no longer the owner
    ORPHAN = "orphan"  # its run does not exist
    AFTER_END = "after_end"  # its run has ended
    REPEATED = "repeated"  # it says what the log has said before, or nothing that matters


class Shard:
    """Fold records of one partition in offset order. Not thread-safe."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.epoch = -1  # offset of the newest lease seen
        self.lease: LeaseAcquired | None = None
        self.runs: dict[str, Run] = {}  # open runs, by where their fold begins
        self.next_offset = 0
        self._ended: dict[str, None] = {}

    def apply(self, record: Record) -> Run | Ignored:
        """The run as the record leaves it, ended ones too (for the last time); or why none changed."""
        self.next_offset = record.offset + 1
        event = record.event
        if isinstance(event, LeaseAcquired):
            self.epoch, self.lease = record.offset, event
            return Ignored.LEASE
        if not isinstance(event, Command):
            if not self.epoch <= event.epoch < record.offset:
                return Ignored.STALE_EPOCH
            self.epoch = event.epoch
        return self._evolve(event.run_id, record)

    def _evolve(self, run_id: str, record: Record) -> Run | Ignored:
        run = self.runs.get(run_id)
        if run is None and run_id in self._ended:
            return Ignored.REPEATED if isinstance(record.event, RunRequested) else Ignored.AFTER_END
        changed = evolve(run, record)
        if changed is None:
            if isinstance(record.event, RunFinished):  # the rest of a run that ended before the fold began
                self.remember(run_id)
            return Ignored.ORPHAN
        if changed is run:
            return Ignored.REPEATED
        if changed.status.final:
            self.runs.pop(run_id, None)
            self.remember(run_id)
        else:
            if isinstance(record.event, RunSnapshotted):
                self.runs.pop(run_id, None)  # it moves behind those whose fold begins earlier
            self.runs[run_id] = changed
        return changed

    def remember(self, run_id: str) -> None:
        """Take a run for ended. The oldest of many is forgotten."""
        self._ended[run_id] = None
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def has_ended(self, run_id: str) -> bool:
        return run_id in self._ended

    @property
    def low(self) -> int:
        """Where a fold must start to know all that this one knows of open runs."""
        oldest = next((run.fold_from for run in self.runs.values()), self.next_offset)
        return max(0, min(oldest, self.next_offset - OVERLAP))

