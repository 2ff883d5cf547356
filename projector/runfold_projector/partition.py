"""One partition as the projector reads it: the very fold that the worker uses, and what of it is not in the tables yet.

The fold begins at `low`, before the position of the tables, and runs up to that position without writing anything: so it knows
the open runs and the ones that ended lately. From the position on it fills batches.

What it cannot read makes a row of its own. A run that lacks a record which a newer version can read is shown as waiting for that
version, as long as this build is the one that shows it.
"""

from runfold.core.events import Delivery, LeaseAcquired, Record, Unreadable
from runfold.core.gaps import Gaps, run_of
from runfold.core.run import Run
from runfold.core.shard import OVERLAP, Ignored, Shard
from runfold_projector.batch import Batch, Position
from runfold_projector.values import moment, optional


class Partition:
    """Folds the deliveries of one partition, in offset order. Not thread-safe."""

    def __init__(self, stored: Position) -> None:
        self._stored = stored  # what the tables say, and will say once the batches filled so far are written
        self._shard = Shard(stored.partition)
        self._gaps = Gaps(self._shard)
        self._at = 0  # broker ms of the last delivery
        self._resumed: dict[str, Run] = {}  # that wait for a newer version, here or by the tables: how they stand at the position
        overlap = max(0, stored.next_offset - OVERLAP)
        self.low = overlap if stored.low is None else min(stored.low, overlap)  # where reading must start
        if stored.lease_worker is not None and stored.lease_epoch < self.low:  # else the fold reads the lease itself
            self._shard.epoch = stored.lease_epoch
            self._shard.lease = LeaseAcquired(partition=stored.partition, worker=stored.lease_worker, build="")

    def apply(self, delivery: Delivery, batch: Batch) -> None:
        """Fold ``delivery``; what it changes goes into ``batch``, unless the tables have it. What came before is passed over."""
        if delivery.offset < self._shard.next_offset:
            return
        is_new, self._at = delivery.offset >= self._stored.next_offset, delivery.timestamp
        if isinstance(delivery, Unreadable):
            shown = self._leave_out(delivery)
            if is_new:
                batch.leave_out(delivery, shown)
            elif shown is not None:  # whoever wrote the tables may have read it, or have known no such state
                self._resumed[shown.id] = shown
            return
        outcome = self._fold(delivery)
        if is_new:
            batch.add(delivery, outcome, self._worker)
        elif isinstance(outcome, Run) and (outcome.id in self._stored.waiting or outcome.id in self._resumed):
            self._resumed[outcome.id] = outcome

    def close(self, batch: Batch) -> None:
        """Say in ``batch`` how far it brings this partition, if at all: what comes next goes into the next batch."""
        if self._shard.next_offset < self._stored.next_offset:
            return
        for run in self._resumed.values():
            batch.resume(run)
        if self._shard.next_offset == self._stored.next_offset and not self._resumed:
            return
        self._resumed = {}
        reached = Position(
            partition=self._stored.partition,
            next_offset=self._shard.next_offset,
            lease_epoch=self._shard.epoch,
            lease_worker=optional(self._worker),
            last_record_at=moment(self._at),
        )
        batch.moves.append((self._stored, reached))
        self._stored = reached

    def _fold(self, record: Record) -> Run | Ignored:
        outcome = self._shard.apply(record)
        self._gaps.read(record, outcome)
        return self._gaps.shown(outcome) if isinstance(outcome, Run) else outcome

    def _leave_out(self, delivery: Unreadable) -> Run | None:
        """The run that stands otherwise for it, if one does. Of runs that nobody has begun nothing is kept: they have no row."""
        self._shard.next_offset = delivery.offset + 1
        if (run := self._shard.runs.get(run_of(delivery))) is None:
            return None
        self._gaps.left_out(delivery)
        shown = self._gaps.shown(run)
        return None if shown is run else shown

    @property
    def _worker(self) -> str | None:
        return self._shard.lease.worker if self._shard.lease else None
