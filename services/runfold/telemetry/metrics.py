"""Every metric Runfold exports, in one typed list. No label ever takes a run id, a tool's name or any other unbounded value.

A new one is declared here; ``python -m tests.unit.docs_tables`` tells docs/operations.md of it.
"""

from prometheus_client import Counter, Gauge, Histogram

from runfold.telemetry.declaring import Exported, Metric

STEP_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
FAILOVER_SECONDS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 2, 3, 5, 8, 15, 30, 60, 300, 3600)
LOG_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
MOST_LABELS = 50  # values of a label that users choose; further ones share OTHER
OTHER = "other"


class Bounded:
    """The first `MOST_LABELS` values keep their own label, so that nobody's input makes the number of series grow for ever."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= MOST_LABELS or len(value) > 100:
            return OTHER
        self._seen.add(value)
        return value


class WorkerMetrics(Exported):
    """What a worker process exports."""

    tokens = Metric(Counter, "agent_tokens", "Tokens of complete answers.", "model", "direction")
    cost = Metric(Counter, "agent_cost_usd", "US dollars of complete answers with a known price.", "model")
    unpriced = Metric(Counter, "agent_unpriced_answers", "Answers without a known price.", "model")
    step = Metric(
        Histogram,
        "agent_step_latency_seconds",
        "Duration of model and tool steps, from their start to their result.",
        "kind",
        "outcome",
        buckets=STEP_SECONDS,
    )
    runs_ended = Metric(Counter, "runfold_runs_ended", "Runs that ended.", "status", "reason")
    runs_open = Metric(Gauge, "runfold_runs_open", "Open runs on owned partitions.", "status")
    runs_parked = Metric(Gauge, "runfold_runs_parked", "Open runs on owned partitions that only a newer build can go on with.")
    partitions = Metric(Gauge, "runfold_partitions_owned", "Partitions this worker owns.")
    models_held = Metric(Gauge, "runfold_models_held", "1 while new calls of a model wait: it does nothing but fail.", "model")
    takeover = Metric(
        Histogram, "runfold_takeover_seconds", "From the begin of a takeover to owning the partition.", buckets=LOG_SECONDS
    )
    failover = Metric(
        Histogram,
        "runfold_failover_seconds",
        "How long nobody carried a partition whose owner failed, until our first event on it; since its worker's death, or "
        "since the last event of an owner that left steps under way: an upper bound.",
        "since",
        buckets=FAILOVER_SECONDS,
    )
    fold = Metric(
        Histogram, "runfold_fold_seconds", "Of a takeover, from the low watermark to our own marker.", buckets=LOG_SECONDS
    )
    folded = Metric(Counter, "runfold_folded_records", "Records read by takeovers.")
    resumed = Metric(Counter, "runfold_runs_resumed", "Begun runs that came from another owner.")
    resets = Metric(Counter, "runfold_lease_resets", "Takeovers because the append path broke.", "cause")
    commit = Metric(
        Histogram, "runfold_commit_seconds", "From a transaction's begin to its acknowledgement.", buckets=LOG_SECONDS
    )
    echo = Metric(Histogram, "runfold_echo_seconds", "From the acknowledgement to the last record's echo.", buckets=LOG_SECONDS)
    committed = Metric(Counter, "runfold_committed_events", "Events written and read back.")
    repeated = Metric(Counter, "runfold_model_calls_repeated", "Model steps started again: their owner died in them, or let go.")
    paid_twice = Metric(
        Counter,
        "runfold_tokens_paid_twice",
        "Tokens of such steps' lost attempts: estimated by what the answer took, and at most, as one may not have been sent.",
        "model",
    )
    late = Metric(
        Counter,
        "runfold_late_results",
        "Results of steps that came when the run had gone on or ended without them, or from an owner that no longer was one.",
        "kind",
        "why",
    )
    ignored = Metric(Counter, "runfold_ignored_records", "Records that changed no run.", "why")
    unreadable = Metric(Counter, "runfold_unreadable_records", "Records that could not be read.", "problem")
    dead_letters = Metric(
        Counter,
        "runfold_dead_letters",
        "Records copied to the dead-letter topic. Commands are not forwarded: a misrouted one is here.",
        "problem",
        "kind",
    )
    live_dropped = Metric(Counter, "runfold_live_dropped", "Pieces of live text that nobody will see. The log has the answers.")
    blocked = Metric(Gauge, "runfold_partitions_blocked", "Partitions that do not move, or not all of them.", "reason")
    loop_age = Metric(Gauge, "runfold_loop_age_seconds", "Since the event loop last turned. Above 2: it is blocked.")


class ProjectorMetrics(Exported):
    """What a projector process exports."""

    leads = Metric(Gauge, "runfold_projector_leads", "1 where this projector writes, 0 where it stands by.")
    applied = Metric(Counter, "runfold_projected_records", "Records projected.")
    rows = Metric(Counter, "runfold_projected_rows", "Rows written.")
    write = Metric(Histogram, "runfold_projection_seconds", "What one transaction takes.", buckets=LOG_SECONDS)
    ignored = Metric(Counter, "runfold_projection_ignored", "Records that changed no run.", "why")
    unreadable = Metric(Counter, "runfold_projection_unreadable", "Records that could not be read; each has a row.", "problem")
    retries = Metric(Counter, "runfold_projection_retries", "New beginnings after an error.", "error")
    lag_records = Metric(Gauge, "runfold_projection_lag_records", "Offsets in the log, not in the tables.")
    lag_seconds = Metric(Gauge, "runfold_projection_lag_seconds", "How old what the tables show may be.")
    stable_offset_age = Metric(
        Gauge,
        "runfold_stable_offset_age_seconds",
        "How long the last stable offset of a partition has stood still before records: behind a transaction that hangs.",
    )


class ApiMetrics(Exported):
    """What an API process exports. ``route`` is a template, never a path."""

    requests = Metric(Counter, "runfold_http_requests", "Requests answered.", "method", "route", "status")
    seconds = Metric(
        Histogram,
        "runfold_http_request_seconds",
        "From a request's head to the end of its answer.",
        "method",
        "route",
        buckets=LOG_SECONDS,
    )
    lag_seconds = Metric(Gauge, "runfold_projection_lag_seconds", "Age of the oldest record not in the tables; NaN: not known.")
    stalled = Metric(Gauge, "runfold_runs_stalled", "Open runs without progress for long, as tables know them; NaN: not known.")
