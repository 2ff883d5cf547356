"""The log of a scene as it is committed, and what a test asks of it."""

from collections.abc import Sequence
from uuid import uuid4

from runfold.core.events import Delivery, LeaseAcquired, Record, RunFinished, ToolStepFinished
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.log.partitioner import partition_of


class FollowedLog:
    """``log`` holds what was read, by partition."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.log: list[list[Delivery]] = [[] for _ in range(partitions)]
        self.finished: set[str] = set()  # runs with a RunFinished

    def took(self, batch: Sequence[Delivery]) -> None:
        """Further deliveries of one partition."""
        self.log[batch[0].partition] += batch
        events = [delivery.event for delivery in batch if isinstance(delivery, Record)]
        self.finished |= {event.run_id for event in events if isinstance(event, RunFinished)}

    def records(self, run_id: str | None = None) -> list[Record]:
        """Of one run, or all that can be read."""
        readable = [delivery for partition in self.log for delivery in partition if isinstance(delivery, Record)]
        return readable if run_id is None else [record for record in readable if getattr(record.event, "run_id", "") == run_id]

    def kinds(self, run_id: str) -> list[str]:
        """The types of a run's records, in order."""
        return [type(record.event).__name__ for record in self.records(run_id)]

    def run(self, run_id: str) -> Run:
        """The fold of a run."""
        shard, found = Shard(self.partition_of(run_id)), None
        for delivery in self.log[shard.partition]:
            if isinstance(delivery, Record) and isinstance(run := shard.apply(delivery), Run) and run.id == run_id:
                found = run
        assert found is not None, f"the log knows no run {run_id}"
        return found

    def leases(self, worker: str | None = None) -> int:
        """How many leases a worker has taken, or all have."""
        events = [record.event for record in self.records()]
        return sum(isinstance(event, LeaseAcquired) and worker in (None, event.worker) for event in events)

    def owner(self, partition: int) -> str:
        """The worker whose lease of ``partition`` is the newest."""
        return self._leases(partition)[-1][1]

    def partition_of(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self.partitions)

    def id_on(self, partition: int) -> str:
        """The id of no run, which belongs to ``partition``."""
        return next(id_ for id_ in iter(lambda: str(uuid4()), "") if self.partition_of(id_) == partition)

    def epoch(self, partition: int) -> int:
        """The offset of the newest lease."""
        return self._leases(partition)[-1][0]

    def _leases(self, partition: int) -> list[tuple[int, str]]:
        """(offset, worker) of each lease of a partition."""
        records = [record for record in self.records() if record.partition == partition]
        return [(record.offset, event.worker) for record in records if isinstance(event := record.event, LeaseAcquired)]

    def answered(self, run_id: str) -> list[str]:
        """The tool_use id of each ToolStepFinished."""
        return [record.event.tool_use_id for record in self.records(run_id) if isinstance(record.event, ToolStepFinished)]
