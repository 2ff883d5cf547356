"""Reads that see the reader's own writes, although the projection lags.

A run that is in the projection is answered from it. One that is not is looked for where the projection has not been yet: in its
partition of the log, from the offset that the projector reads next. "Unknown" is said only of a run that is in neither:

1. look in the projection;
2. not there: ask how far the projector is, *then* look again, for it may have moved between the two;
3. still not there, so nothing below that offset speaks of the run: fold what the log holds from there on.
"""

from collections.abc import Iterable

from runfold.api.patience import in_time
from runfold.api.rows import Row, row_of
from runfold.core.errors import LogUnavailable, ReadUnavailable
from runfold.core.events import Record
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.ports import ReadModel, Tail


class Reads:
    """Where runs stand. Everything raises `ReadUnavailable` or `LogUnavailable` when it cannot be known now."""

    def __init__(self, projection: ReadModel, tail: Tail) -> None:
        self._projection, self._tail = projection, tail

    async def run(self, run_id: str) -> Row | None:
        """The run's row; None: there is no such run."""
        row = await self._projected(run_id)
        if row is not None:
            return row
        applied = await in_time(self._projection.applied(self._tail.partition_of(run_id)), ReadUnavailable)
        row = await self._projected(run_id)
        if row is not None:
            return row
        records = await in_time(self._tail.records(run_id, applied), LogUnavailable)
        run = _fold(self._tail.partition_of(run_id), records)
        return None if run is None else row_of(run)

    async def timeline(self, run_id: str) -> list[Row] | None:
        """The steps that are projected, in order; None: there is no such run."""
        steps = await in_time(self._projection.steps(run_id), ReadUnavailable)
        if not steps and await self.run(run_id) is None:
            return None
        return steps

    async def _projected(self, run_id: str) -> Row | None:
        return await in_time(self._projection.run(run_id), ReadUnavailable)


def _fold(partition: int, records: Iterable[Record]) -> Run | None:
    """The run that ``records``, all of one run, leave; by the rules of `Shard`, so that stale epochs are skipped here too."""
    shard, run = Shard(partition), None
    for record in records:
        changed = shard.apply(record)
        run = changed if isinstance(changed, Run) else run
    return run
