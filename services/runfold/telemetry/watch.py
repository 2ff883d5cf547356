"""The worker's observer: each thing that happens as a log line for people and as numbers for Prometheus."""

import json
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from runfold.core.errors import LogError
from runfold.core.events import (
    Command,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    OwnerEvent,
    Record,
    RunFinished,
    RunRequested,
    RunSuspended,
    Status,
    StepAborted,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
    Usage,
)
from runfold.core.printable import printable
from runfold.core.run import Run
from runfold.core.shard import Ignored
from runfold.ports import Failover
from runfold.telemetry.metrics import Bounded, WorkerMetrics

log = logging.getLogger("runfold.step")
lease_log = logging.getLogger("runfold.lease")

NAME_LENGTH = 100  # of what a model or a user calls things, as far as a line shows it
MESSAGE_LENGTH = 300  # of what a tool says of its failure
COMMANDS = frozenset(kind.__name__.encode() for kind in get_args(Command))
OPEN = (Status.QUEUED, Status.RUNNING, Status.SUSPENDED)


class Lost(NamedTuple):
    """A model step whose owner died in it."""

    partition: int
    seq: int
    attempts: int  # that died with owners


class Watch:
    """Implements `runfold.ports.Observer`."""

    def __init__(self, worker: str, metrics: WorkerMetrics) -> None:
        self.worker, self.metrics = worker, metrics
        self._model = Bounded()
        self._tools: dict[str, tuple[int, dict[int, str]]] = {}  # by run: its partition; by seq: names of tools under way
        self._lost: dict[str, Lost] = {}  # by run
        self._owned: set[int] = set()

    # ---- runs

    def applied(self, record: Record, run: Run) -> None:
        match record.event:
            case ModelStepCompleted() as event:
                self._answered(run, event)
            case ModelStepStarted() as event:
                if run.id in self._lost:
                    self._started_again(run, event)
            case ModelStepFailed() as event:
                self.metrics.step.labels("model", event.reason.lower()).observe(event.latency_ms / 1000)
                again = "final" if event.retry_at is None else f"retry in {max(0, event.retry_at - record.timestamp)}ms"
                self._say(run, event.seq, f"MODEL attempt {event.attempt} failed {event.reason}: {event.message}; {again}")
            case ToolStepStarted() as event:
                name = event.name[:NAME_LENGTH]
                self._tools.setdefault(run.id, (record.partition, {}))[1][event.seq] = name
                self._say(run, event.seq, f"TOOL {name} id={event.tool_use_id[:NAME_LENGTH]} started")
            case ToolStepFinished() as event:
                self.metrics.step.labels("tool", event.status.lower()).observe(event.latency_ms / 1000)
                name = self._tools[run.id][1].pop(event.seq, "?") if run.id in self._tools else "?"
                id_ = event.tool_use_id[:NAME_LENGTH]
                why = "" if event.status is ToolStatus.DONE else f": {_message(event.content_json)}"
                self._say(run, event.seq, f"TOOL {name} id={id_} {event.status.lower()} {event.latency_ms}ms{why}")
            case StepAborted() as event:
                self._say(run, event.seq, f"attempt {event.attempt} aborted: the partition is let go")
            case RunFinished() as event:
                self._tools.pop(run.id, None)
                self._lost.pop(run.id, None)
                self.metrics.runs_ended.labels(event.status, event.reason).inc()
                why = "" if event.status is Status.SUCCEEDED else f" reason={event.reason} {event.detail}".rstrip()
                self._say(run, None, f"{event.status} tokens={event.usage.total}{why}")
            case RunSuspended() as event:
                self._say(run, None, f"SUSPENDED reason={event.reason} {event.detail}")
            case RunRequested():
                self._say(run, None, f"QUEUED agent={run.request.agent[:60]}")
            case _:
                pass

    def _answered(self, run: Run, event: ModelStepCompleted) -> None:
        model, usage = self._model(event.model), event.usage
        for direction, count in _directions(usage):
            if count:
                self.metrics.tokens.labels(model, direction).inc(count)
        if event.cost is None:
            self.metrics.unpriced.labels(model).inc()
        else:
            self.metrics.cost.labels(model).inc(float(event.cost))
        self.metrics.step.labels("model", "done").observe(event.latency_ms / 1000)
        if run.id in self._lost:
            self._answered_again(run, event, model)
        read = usage.total - usage.output_tokens
        text = f"MODEL stop={event.stop_reason[:60]} in={read} out={usage.output_tokens} latency={event.latency_ms}ms"
        self._say(run, event.seq, text)

    def _started_again(self, run: Run, event: ModelStepStarted) -> None:
        if event.seq == self._lost[run.id].seq:
            self.metrics.repeated.inc()

    def _answered_again(self, run: Run, event: ModelStepCompleted, model: str) -> None:
        """What an attempt took that died with its owner nobody knows; the one that replaced it was asked the same."""
        lost = self._lost.pop(run.id)
        if event.seq == lost.seq:
            self.metrics.paid_twice.labels(model).inc(lost.attempts * event.usage.total)

    def resumed(self, run: Run) -> None:
        self.metrics.resumed.inc()
        if run.step.open or (run.step.aborted and run.step.retry_at is None):  # its last attempt has no result
            self._lost[run.id] = Lost(run.partition, run.step.seq, run.step.attempt - run.step.failures)
        due = [call.seq for call in run.calls if call.status is None]
        where = f"resumed at seq={min(due, default=run.step.seq)}"
        self._say(run, None, f"taken over, SUSPENDED {run.reason}" if run.status is Status.SUSPENDED else where)

    def _say(self, run: Run, seq: int | None, text: str) -> None:
        if not log.isEnabledFor(logging.INFO):
            return
        where = f"run={run.id[:8]}" if seq is None else f"run={run.id[:8]} seq={seq}"
        log.info("%s %s %s", self.worker, where, printable(text), extra=_fields(run, seq))

    # ---- records that change nothing

    def ignored(self, record: Record, why: Ignored) -> None:
        self.metrics.ignored.labels(why).inc()
        if isinstance(record.event, ModelStepCompleted | ModelStepFailed | ToolStepFinished):
            self.metrics.late.labels(_kind(record.event), why).inc()
        kind = type(record.event).__name__
        lease_log.info("%s ignored %s at %d/%d: %s", self.worker, kind, record.partition, record.offset, why)

    def unreadable(self, delivery: Unreadable) -> None:
        self.metrics.unreadable.labels(delivery.problem).inc()
        where = f"{delivery.partition}/{delivery.offset}"
        lease_log.warning("%s cannot read %s: %s: %s", self.worker, where, delivery.problem, printable(delivery.detail))

    def late(self, run_id: str, result: OwnerEvent) -> None:
        self.metrics.late.labels(_kind(result), "dropped").inc()
        log.info("%s run=%s a result came late and is dropped", self.worker, run_id[:8], extra={"runfold.run.id": run_id})

    def buried(self, delivery: Unreadable) -> None:
        self.metrics.dead_letters.labels(delivery.problem, _claimed(delivery)).inc()

    # ---- the lease

    def acquired(self, partition: int, epoch: int, records: int, seconds: float) -> None:
        self._owned.add(partition)
        self.metrics.partitions.set(len(self._owned))
        self.metrics.takeover.observe(seconds)
        self.metrics.folded.inc(records)
        lease_log.info("%s owns partition %d, epoch %d, after %.0f ms", self.worker, partition, epoch, seconds * 1000)

    def took_over(self, partition: int, fold_seconds: float, failover: Failover | None) -> None:
        self.metrics.fold.observe(fold_seconds)
        if failover is not None:
            self.metrics.failover.labels(failover.since).observe(failover.seconds)

    def released(self, partition: int) -> None:
        self._owned.discard(partition)
        self._lost = {id_: lost for id_, lost in self._lost.items() if lost.partition != partition}
        self._tools = {id_: known for id_, known in self._tools.items() if known[0] != partition}
        self.metrics.partitions.set(len(self._owned))
        lease_log.info("%s let go of partition %d", self.worker, partition)

    def reset(self, partition: int, error: LogError) -> None:
        self.metrics.resets.labels(type(error).__name__).inc()

    def committed(self, partition: int, events: int, commit_seconds: float, echo_seconds: float) -> None:
        self.metrics.commit.observe(commit_seconds)
        self.metrics.echo.observe(echo_seconds)
        self.metrics.committed.inc(events)

    def held(self, model: str, held: bool) -> None:
        """New calls of a model wait, or go on."""
        self.metrics.models_held.labels(self._model(model)).set(held)

    def count_runs(self, runs: Iterable[Run], parked: int = 0) -> None:
        """Set the gauges of open runs and of those that wait for a newer build; asked every now and then, not at every record."""
        self.metrics.runs_parked.set(parked)
        counts = Counter(run.status for run in runs)
        for status in OPEN:
            self.metrics.runs_open.labels(status).set(counts[status])


def _kind(result: OwnerEvent) -> str:
    return "model" if isinstance(result, ModelStepCompleted | ModelStepFailed) else "tool"


def _message(content_json: str) -> str:
    """The start of what a tool's failure says."""
    try:
        content = json.loads(content_json)
    except ValueError:
        content = content_json
    text = content if isinstance(content, str) else content_json
    return text if len(text) <= MESSAGE_LENGTH else text[:MESSAGE_LENGTH] + "…"


def _claimed(delivery: Unreadable) -> str:
    """What a record that nobody can read says it is, of a few words."""
    if delivery.from_owner:
        return "event"
    return "command" if delivery.type_header in COMMANDS else "other"


def _directions(usage: Usage) -> tuple[tuple[str, int], ...]:
    return (
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cache_write_5m", usage.cache_write_5m_tokens),
        ("cache_write_1h", usage.cache_write_1h_tokens),
        ("cache_read", usage.cache_read_tokens),
    )


def _fields(run: Run, seq: int | None) -> dict[str, Any]:
    return {"runfold.run.id": run.id} if seq is None else {"runfold.run.id": run.id, "runfold.step.seq": seq}
