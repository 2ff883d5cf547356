"""The projector's observer: log lines for people, numbers for Prometheus."""

import logging

from runfold.core.errors import RunfoldError
from runfold.core.events import Problem
from runfold.core.shard import Ignored
from runfold.telemetry.metrics import ProjectorMetrics

log = logging.getLogger("runfold.projector")


class ProjectionWatch:
    """Implements the observer of `runfold_projector.ports`."""

    def __init__(self, metrics: ProjectorMetrics) -> None:
        self.metrics = metrics
        self._leads: bool | None = None

    def leading(self, leads: bool) -> None:
        if leads != self._leads:
            log.info("projecting" if leads else "standing by: another projector leads")
        self._leads = leads
        self.metrics.leads.set(leads)

    def written(self, records: int, rows: int, seconds: float) -> None:
        self.metrics.applied.inc(records)
        self.metrics.rows.inc(rows)
        self.metrics.write.observe(seconds)

    def ignored(self, why: Ignored, records: int) -> None:
        self.metrics.ignored.labels(why).inc(records)

    def unreadable(self, problem: Problem, records: int) -> None:
        self.metrics.unreadable.labels(problem).inc(records)

    def retrying(self, error: RunfoldError, seconds: float) -> None:
        self.metrics.retries.labels(type(error).__name__).inc()
        log.warning("%s; going on from what is stored in %.1f s", error, seconds)
