"""Carrying old open runs forward, so that a takeover reads a bounded tail however old its runs are."""

from collections.abc import Container, Iterator, Mapping

from runfold.core import snapshot
from runfold.core.events import RunSnapshotted
from runfold.core.shard import Shard
from runfold.worker.flow import Flow
from runfold.worker.size import fits

BEHIND = 5_000  # records that a fold may have to read at least before anything is carried
FACTOR = 3  # and no fewer than this many times the state to be carried: what snapshots add to the log stays a fraction of it
OVERHEAD = 8  # of a run's state beside its messages, counted in messages
AT_ONCE = 50  # snapshots between two looks at the partition
LOOK_EVERY = 500  # records


class Carrier:
    """Says which runs of a partition are due for a `RunSnapshotted`: those whose fold begins too far behind the head."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._limit = BEHIND

    def due(
        self, shard: Shard, flows: Mapping[str, Flow], gaps: Container[str] = ()
    ) -> Iterator[tuple[Flow, RunSnapshotted]]:
        """Snapshots to append now. A run with events under way is left for later, one too large for the log is left alone, and so
        is one with ``gaps``: what is not known of it would be lost."""
        head = shard.next_offset
        if not shard.runs or head - next(iter(shard.runs.values())).fold_from < self._limit:
            return
        self._look(shard)
        written = 0
        for run in shard.runs.values():
            if head - run.fold_from < self._limit or written == AT_ONCE:
                return
            flow = flows.get(run.id)
            if flow is not None and not flow.unread and run.id not in gaps and head - flow.carried_at >= self._limit:
                flow.carried_at = head
                if fits(event := _snapshot(flow, shard.epoch)):
                    written += 1
                    yield flow, event

    def _look(self, shard: Shard) -> None:
        """How far behind is too far depends on how much there is to carry."""
        if shard.next_offset - self._looked_at >= LOOK_EVERY:
            self._looked_at = shard.next_offset
            state = sum(len(run.messages) + OVERHEAD for run in shard.runs.values())
            self._limit = max(BEHIND, FACTOR * state)


def _snapshot(flow: Flow, epoch: int) -> RunSnapshotted:
    run = flow.run
    return RunSnapshotted(
        run_id=run.id,
        epoch=epoch,
        last_offset=run.last_offset,
        state_version=snapshot.VERSION,
        state_json=snapshot.to_text(run),
    )
