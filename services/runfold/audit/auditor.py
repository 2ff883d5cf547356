"""An audit of a whole log: one `PartitionAudit` per partition, and what they found."""

from collections.abc import Collection, Iterable, Mapping

from runfold.audit.findings import Violation
from runfold.audit.partition import PartitionAudit
from runfold.core.events import Delivery

KEPT = 1_000  # violations that are kept; all are counted


class Auditor:
    """Take deliveries in offset order within each partition; partitions may come in any mixture.

    ``starts`` says where the log of a partition begins: 0 is its very beginning and the default, None an excerpt without leases.
    ``leave_out`` are names of invariants whose violations are not reported.
    """

    def __init__(self, starts: Mapping[int, int | None] = {}, leave_out: Collection[str] = ()) -> None:
        self.partitions = {partition: PartitionAudit(partition, start) for partition, start in sorted(starts.items())}
        self.violations: list[Violation] = []
        self.counts: dict[int, int] = {}  # violations, by partition
        self._leave_out = frozenset(leave_out)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            partition = self.partitions.get(delivery.partition)
            if partition is None:
                partition = self.partitions[delivery.partition] = PartitionAudit(delivery.partition)
            violation = partition.take(delivery)
            if violation is not None and violation.invariant not in self._leave_out:
                self._report(violation)

    def _report(self, violation: Violation) -> None:
        self.counts[violation.partition] = self.counts.get(violation.partition, 0) + 1
        if len(self.violations) < KEPT:
            self.violations.append(violation)


def verify(deliveries: Iterable[Delivery], *, leases: bool = True) -> list[Violation]:
    """What the records of a log break, in the order given. Not ``leases``: an excerpt, records of whole runs and no leases."""
    deliveries = list(deliveries)
    auditor = Auditor({delivery.partition: 0 if leases else None for delivery in deliveries})
    auditor.take(deliveries)
    return auditor.violations
