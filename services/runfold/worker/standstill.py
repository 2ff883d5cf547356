"""Whether a partition stands still, derived from the offsets that were applied and not from what its tasks say they do.

A step may take an hour in which nothing is to be written or read. But when the log has grown, or something is submitted, a record
must be applied soon; if none is, nothing else here can be trusted to notice.
"""

MARKER = 1  # offset, of the commit behind the last record: nothing is to be applied there, whenever the reader learns of it
SETTLE_SECONDS = 1.0  # within which it learns of whatever else it is that no record corresponds to, as in an aborted transaction


class Standstill:
    """`look` every now and then; ``since`` is when the partition began to stand still, None while it does not."""

    def __init__(self) -> None:
        self._applied = self._end = -1
        self._moved_at = 0.0
        self.since: float | None = None

    def look(self, applied: int, end: int, owing: bool, now: float) -> None:
        """``applied``: the next offset to apply. ``end``: where the log ends, uncommitted records and markers counted, as far as
        is known. ``owing``: something is submitted and not read back. ``now``: seconds of any clock."""
        if applied != self._applied:
            self._applied, self._moved_at = applied, now
            self.since = None
        if now - self._moved_at < SETTLE_SECONDS:
            self._end = end
        if not owing and end <= max(self._end, applied + MARKER):
            self.since = None
        elif self.since is None:
            self.since = now
