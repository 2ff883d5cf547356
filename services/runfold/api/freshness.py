"""How far the tables are behind the log and which runs stand still, asked by the API at each scrape of ``/metrics``.

The projector and the workers cannot be asked: what is measured is that one of them is stopped. The lag comes off first, so that
runs which the projection has merely not heard of lately do not look as if they stood still. Tables that are so old that no run
could look so tell nothing: then no run is known to stand still, and none to move.
"""

import asyncio
import math

from runfold.core.errors import RunfoldError
from runfold.ports import ReadModel, Tail
from runfold.telemetry.metrics import ApiMetrics

SCRAPE_SECONDS = 2.0
STALLED_SECONDS = 300.0


class Freshness:
    """Keeps two gauges of ``metrics``; each is NaN while it is not known."""

    def __init__(self, projection: ReadModel, tail: Tail, metrics: ApiMetrics, stalled_seconds: float) -> None:
        self._projection, self._tail, self._metrics = projection, tail, metrics
        self._stalled_seconds = stalled_seconds
        self._asking: asyncio.Task[tuple[float, float]] | None = None

    async def refresh(self) -> None:
        """Ask anew, and wait `SCRAPE_SECONDS` at most; while a question is not answered, no second one is asked."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        asking = self._asking
        await asyncio.wait({asking}, timeout=SCRAPE_SECONDS)
        lag, stalled = asking.result() if asking.done() else (math.nan, math.nan)
        self._metrics.lag_seconds.set(lag)
        self._metrics.stalled.set(stalled)

    async def _ask(self) -> tuple[float, float]:
        """Seconds of lag, stalled runs."""
        lag = math.nan
        try:
            lag = await lag_of(self._projection, self._tail)
            stalled = await self._projection.stalled(self._stalled_seconds + lag)
        except RunfoldError:
            return lag, math.nan
        return lag, stalled if stalled or lag <= self._stalled_seconds else math.nan


async def lag_of(projection: ReadModel, tail: Tail) -> float:
    """Seconds: the age of the oldest committed record not applied to the tables. Raises `RunfoldError`: it is not known."""
    return await tail.behind(await projection.reached())
