"""Carrying old open runs forward, so that a takeover reads a bounded tail however old its runs are.

The tail is measured in records and in bytes, whichever is long first.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping

from runfold.core import snapshot
from runfold.core.events import RunSnapshotted
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.worker.flow import Flow
from runfold.worker.size import fits

BEHIND = 5_000  # records that a fold may have to read at least before anything is carried
BEHIND_BYTES = 32_000_000  # the same, in bytes: some tenths of a second
FACTOR = 3  # and no fewer than this many times the state to be carried: what snapshots add to the log stays a fraction of it
OVERHEAD = 8  # of a run's state beside its messages, counted in messages
OVERHEAD_BYTES = 2_000  # the same, in bytes
AT_ONCE = 50  # snapshots between two looks at the partition
LOOK_EVERY = 500  # records
LOOK_EVERY_BYTES = 8_000_000
MARK_EVERY = 1_000_000  # bytes


class Carrier:
    """Says which runs of a partition are due for a `RunSnapshotted`: those whose fold begins too far behind the head."""

    def __init__(self) -> None:
        self._looked_at = self._looked_at_bytes = 0
        self._limit = BEHIND
        self._limit_bytes = BEHIND_BYTES
        self._bytes = 0  # read so far
        self._marks, self._sizes = [0], [0]  # offsets, and the bytes read before each

    def read(self, head: int, size: int) -> None:
        """All before offset ``head`` was read, ``size`` bytes so far."""
        if size - self._sizes[-1] >= MARK_EVERY:
            self._marks.append(head)
            self._sizes.append(size)
        self._bytes = size

    def due(
        self, shard: Shard, flows: Mapping[str, Flow], gaps: Container[str] = ()
    ) -> Iterator[tuple[Flow, RunSnapshotted]]:
        """Snapshots to append now. A run with events under way is left for later, one too large for the log is left alone, and so
        is one with ``gaps``: what is not known of it would be lost."""
        head = shard.next_offset
        if not shard.runs or not self._is_far(next(iter(shard.runs.values())).fold_from, head):
            return
        self._look(shard)
        written = 0
        for run in shard.runs.values():
            if written == AT_ONCE or not self._is_far(run.fold_from, head):
                return
            flow = flows.get(run.id)
            if flow is not None and not flow.unread and run.id not in gaps and self._is_far(flow.carried_at, head):
                flow.carried_at = head
                if fits(event := _snapshot(flow, shard.epoch)):
                    written += 1
                    yield flow, event

    def _is_far(self, offset: int, head: int) -> bool:
        """Whether a fold from ``offset`` on is too long."""
        return head - offset >= self._limit or self._bytes - self._before(offset) >= self._limit_bytes

    def _before(self, offset: int) -> int:
        """Bytes read before ``offset``, as the mark before it says: at most one `MARK_EVERY` too few, or a large batch."""
        return self._sizes[max(0, bisect_right(self._marks, offset) - 1)]

    def _look(self, shard: Shard) -> None:
        """How far behind is too far depends on how much there is to carry."""
        more = shard.next_offset - self._looked_at, self._bytes - self._looked_at_bytes
        if more[0] >= LOOK_EVERY or more[1] >= LOOK_EVERY_BYTES:
            self._looked_at, self._looked_at_bytes = shard.next_offset, self._bytes
            state = sum(len(run.messages) + OVERHEAD for run in shard.runs.values())
            self._limit = max(BEHIND, FACTOR * state)
            self._limit_bytes = max(BEHIND_BYTES, FACTOR * sum(map(_size, shard.runs.values())))
            self._forget(next(iter(shard.runs.values())).fold_from)

    def _forget(self, oldest: int) -> None:
        """No run asks for marks before the one that ``oldest`` needs."""
        unused = max(0, bisect_right(self._marks, oldest) - 1)
        del self._marks[:unused], self._sizes[:unused]


def _size(run: Run) -> int:
    """Bytes of a run's snapshot, about. What is left out here could make all snapshots longer than the limit: an endless tail."""
    texts = [run.request.input, *(message.content_json for message in run.messages)]
    texts += [text for call in run.calls for text in (call.input_json, call.content_json)]
    if run.started is not None:
        definition = run.started.definition
        texts += [definition.system_json, definition.tools_json, definition.options_json]
    return OVERHEAD_BYTES + sum(len(text) if text.isascii() else 3 * len(text) for text in texts)


def _snapshot(flow: Flow, epoch: int) -> RunSnapshotted:
    run = flow.run
    return RunSnapshotted(
        run_id=run.id,
        epoch=epoch,
        last_offset=run.last_offset,
        state_version=snapshot.VERSION,
        state_json=snapshot.to_text(run),
    )
