"""Every metric Runfold exports, in one typed list. No label ever takes a run id, a tool's name or any other unbounded value."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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


class WorkerMetrics:
    """What a worker process exports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokens = Counter("agent_tokens", "Tokens of complete answers.", ["model", "direction"], registry=registry)
        self.cost = Counter("agent_cost_usd", "US dollars of complete answers with a known price.", ["model"], registry=registry)
        self.unpriced = Counter("agent_unpriced_answers", "Answers without a known price.", ["model"], registry=registry)
        self.step = Histogram(
            "agent_step_latency_seconds",
            "Duration of model and tool steps, from their start to their result.",
            ["kind", "outcome"],
            buckets=STEP_SECONDS,
            registry=registry,
        )
        self.runs_ended = Counter("runfold_runs_ended", "Runs that ended.", ["status", "reason"], registry=registry)
        self.runs_open = Gauge("runfold_runs_open", "Open runs on owned partitions.", ["status"], registry=registry)
        self.runs_parked = Gauge(
            "runfold_runs_parked", "Open runs on owned partitions that only a newer build can go on with.", registry=registry
        )
        self.partitions = Gauge("runfold_partitions_owned", "Partitions this worker owns.", registry=registry)
        self.models_held = Gauge(
            "runfold_models_held", "1 while new calls of a model wait: it does nothing but fail.", ["model"], registry=registry
        )
        self.takeover = Histogram(
            "runfold_takeover_seconds",
            "From the begin of a takeover to owning the partition.",
            buckets=LOG_SECONDS,
            registry=registry,
        )
        self.failover = Histogram(
            "runfold_failover_seconds",
            "How long nobody carried a partition whose owner failed, until our first event on it; since its worker's death, or "
            "since the last event of an owner that left steps under way: an upper bound.",
            ["since"],
            buckets=FAILOVER_SECONDS,
            registry=registry,
        )
        self.fold = Histogram(
            "runfold_fold_seconds",
            "Of a takeover, from the low watermark to our own marker.",
            buckets=LOG_SECONDS,
            registry=registry,
        )
        self.folded = Counter("runfold_folded_records", "Records read by takeovers.", registry=registry)
        self.resumed = Counter("runfold_runs_resumed", "Begun runs that came from another owner.", registry=registry)
        self.resets = Counter("runfold_lease_resets", "Takeovers because the append path broke.", ["cause"], registry=registry)
        self.commit = Histogram(
            "runfold_commit_seconds", "From a transaction's begin to its acknowledgement.", buckets=LOG_SECONDS, registry=registry
        )
        self.echo = Histogram(
            "runfold_echo_seconds", "From the acknowledgement to the last record's echo.", buckets=LOG_SECONDS, registry=registry
        )
        self.committed = Counter("runfold_committed_events", "Events written and read back.", registry=registry)
        self.repeated = Counter(
            "runfold_model_calls_repeated", "Model steps started again because their owner died in them.", registry=registry
        )
        self.paid_twice = Counter(
            "runfold_tokens_paid_twice",
            "Tokens of such steps' lost attempts: estimated by what the answer took, and at most, as one may not have been sent.",
            ["model"],
            registry=registry,
        )
        self.late = Counter(
            "runfold_late_results",
            "Results of steps that came when the run had gone on or ended without them, or from an owner that no longer was one.",
            ["kind", "why"],
            registry=registry,
        )
        self.ignored = Counter("runfold_ignored_records", "Records that changed no run.", ["why"], registry=registry)
        self.unreadable = Counter("runfold_unreadable_records", "Records that could not be read.", ["problem"], registry=registry)
        self.dead_letters = Counter(
            "runfold_dead_letters",
            "Records copied to the dead-letter topic. Commands are not forwarded: a misrouted one is here.",
            ["problem", "kind"],
            registry=registry,
        )
        self.live_dropped = Counter(
            "runfold_live_dropped", "Pieces of live text that nobody will see. The log has the answers.", registry=registry
        )
        self.blocked = Gauge(
            "runfold_partitions_blocked", "Partitions that do not move, or not all of them.", ["reason"], registry=registry
        )
        self.loop_age = Gauge(
            "runfold_loop_age_seconds", "Since the event loop last turned. Above 2: it is blocked.", registry=registry
        )


class ProjectorMetrics:
    """What a projector process exports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leads = Gauge("runfold_projector_leads", "1 where this projector writes, 0 where it stands by.", registry=registry)
        self.applied = Counter("runfold_projected_records", "Records projected.", registry=registry)
        self.rows = Counter("runfold_projected_rows", "Rows written.", registry=registry)
        self.write = Histogram(
            "runfold_projection_seconds", "What one transaction takes.", buckets=LOG_SECONDS, registry=registry
        )
        self.ignored = Counter("runfold_projection_ignored", "Records that changed no run.", ["why"], registry=registry)
        self.unreadable = Counter("runfold_projection_unreadable", "Records passed over.", ["problem"], registry=registry)
        self.retries = Counter("runfold_projection_retries", "New beginnings after an error.", ["error"], registry=registry)
        self.lag_records = Gauge("runfold_projection_lag_records", "Offsets in the log, not in the tables.", registry=registry)
        self.lag_seconds = Gauge("runfold_projection_lag_seconds", "How old what the tables show may be.", registry=registry)
        self.stable_offset_age = Gauge(
            "runfold_stable_offset_age_seconds",
            "How long the last stable offset of a partition has stood still before records: behind a transaction that hangs.",
            registry=registry,
        )


class ApiMetrics:
    """What an API process exports. ``route`` is a template, never a path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter("runfold_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry)
        self.seconds = Histogram(
            "runfold_http_request_seconds",
            "From a request's head to the end of its answer.",
            ["method", "route"],
            buckets=LOG_SECONDS,
            registry=registry,
        )
        self.lag_seconds = Gauge(
            "runfold_projection_lag_seconds", "Age of the oldest record not in the tables; NaN: not known.", registry=registry
        )
        self.stalled = Gauge(
            "runfold_runs_stalled", "Open runs without progress for long, as tables know them; NaN: not known.", registry=registry
        )
