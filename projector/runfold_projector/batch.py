"""What one transaction writes: the rows of many records, each row once, and how far they bring each partition. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from runfold.core.events import Problem, Record, RunRequested, RunSnapshotted, Unreadable
from runfold.core.run import Run
from runfold.core.shard import Ignored
from runfold_projector.projection import project
from runfold_projector.rows import RunRow, RunState, StepEnd, StepStart, UnreadableRow

StepKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far the tables have come in a partition, as `projection_offset` holds it."""

    partition: int
    next_offset: int = 0
    lease_epoch: int = -1
    lease_worker: str | None = None
    last_record_at: datetime | None = None
    low: int | None = None  # where a fold must begin to know all runs that are open in the tables; None: there are none
    waiting: Sequence[str] = ()  # ids of runs that a build which wrote the tables could not follow


@dataclass(slots=True)
class Batch:
    """Changes of rows in log order, later ones in place of earlier ones: no row is written twice in one statement."""

    runs: dict[str, Run] = field(default_factory=dict)
    begun: dict[str, Run] = field(default_factory=dict)  # the runs that may have no row yet, as they began
    starts: dict[StepKey, StepStart] = field(default_factory=dict)
    ends: dict[StepKey, StepEnd] = field(default_factory=dict)  # of starts in this batch or an earlier one
    moves: list[tuple[Position, Position]] = field(default_factory=list)  # of a partition each: from, to
    records: int = 0
    ignored: Counter[Ignored] = field(default_factory=Counter)
    unreadable: list[UnreadableRow] = field(default_factory=list)

    def add(self, record: Record, outcome: Run | Ignored, worker: str | None) -> None:
        """Take up what the fold made of ``record``: the run as it is now, or why none changed. ``worker`` holds the lease."""
        self.records += 1
        if isinstance(outcome, Run):
            self._put(record, outcome, worker)
        else:
            self.ignored[outcome] += 1

    def leave_out(self, delivery: Unreadable, run: Run | None) -> None:
        """Take up that a record could not be read; and the run that stands otherwise for it."""
        self.records += 1
        self.unreadable.append(UnreadableRow.of(delivery))
        if run is not None:
            self.runs[run.id] = run

    def resume(self, run: Run) -> None:
        """Take up how a run stands of which the tables knew only that they could not follow it."""
        self.runs.setdefault(run.id, run)

    @property
    def problems(self) -> Counter[Problem]:
        """How many records could not be read, and why."""
        return Counter(row.problem for row in self.unreadable)

    def _put(self, record: Record, run: Run, worker: str | None) -> None:
        self.runs[run.id] = run
        if isinstance(record.event, RunRequested | RunSnapshotted):  # a log may have lost its beginning
            self.begun.setdefault(run.id, run)
        match project(record, run, worker):
            case StepStart() as start:
                self.starts[start.run_id, start.seq] = start
                self.ends.pop((start.run_id, start.seq), None)  # of the attempt before: the start clears it anyway
            case StepEnd() as end:
                self.ends[end.run_id, end.seq] = end

    @property
    def new_runs(self) -> list[RunRow]:
        return [RunRow.of(run) for run in self.begun.values()]

    @property
    def new_run_states(self) -> list[RunState]:
        """Those of `new_runs`, in the same order."""
        return [RunState.of(self.runs[id_]) for id_ in self.begun]

    @property
    def run_states(self) -> list[RunState]:
        return [RunState.of(run) for run in self.runs.values()]

    @property
    def taken_over(self) -> list[int]:
        """Partitions that have a new lease: its holder knows what the log still holds, and nothing else."""
        return [after.partition for before, after in self.moves if after.lease_epoch != before.lease_epoch]

    @property
    def rows(self) -> int:
        return len(self.runs) + len(self.starts.keys() | self.ends.keys()) + len(self.unreadable)
