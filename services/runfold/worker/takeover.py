"""What the takeover of a partition took: how long the fold was, and how long nobody had carried the partition before.

There is no clock that its last owner and we share, and a dead one does not say when it died. Two things are known:

- Of a worker process of this machine its keeper knows when it died, or when it was last heard of.
- Of any other the log has its last event. A step under way writes nothing, so that this is an upper bound; and it says something
  only where steps were under way when the owner went: one that was drained leaves none, and after it there was no failure.
"""

from collections.abc import Iterable

from runfold.core.events import Record, Status
from runfold.core.run import Run
from runfold.ports import Failover


class Takeover:
    """Of one partition. ``now`` is seconds of the loop's clock."""

    def __init__(self, orphaned_at: float | None) -> None:
        """``orphaned_at``: when its last owner died, if that was the worker process before this one."""
        self._orphaned_at = orphaned_at
        self._reading_since = 0.0

    def reading(self, now: float) -> None:
        """The fold begins."""
        self._reading_since = now

    def fold_seconds(self, now: float) -> float:
        return now - self._reading_since

    def failover(self, marker: Record, runs: Iterable[Run], now: float) -> Failover | None:
        """``runs``: those that are open as our ``marker`` is read back. None: nobody failed, as far as can be known."""
        if self._orphaned_at is not None:
            return Failover("death", now - self._orphaned_at)
        runs = tuple(runs)
        if not any(map(_interrupted, runs)):
            return None
        last_event = max(run.last_at for run in runs)
        return Failover("last_event", max(0, marker.timestamp - last_event) / 1000)


def _interrupted(run: Run) -> bool:
    """Whether it was left with a step under way."""
    return run.status is Status.RUNNING and (run.step.open or any(call.open for call in run.calls))
