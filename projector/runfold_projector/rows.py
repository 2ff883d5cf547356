"""What the projector writes: one frozen dataclass per statement, its fields named as the columns. Pure.

A run is written in two parts, what its request said (`RunRow`, once) and where it stands (`RunState`, whole, each time it
changes). So is a step: `StepStart` begins an attempt and clears what the one before left, `StepEnd` says how it ended. All are
absolute values, never increments: written twice, they change nothing. See `values` for what PostgreSQL cannot hold as it is.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from runfold.core.events import OnBudget, Problem, Reason, SideEffect, Status, Unreadable
from runfold.core.gaps import run_of
from runfold.core.run import Run
from runfold.core.run_ids import is_run_id
from runfold_projector.values import counted, moment, named, optional, stored, tokens


class StepKind(StrEnum):
    MODEL = "MODEL"
    TOOL = "TOOL"


class StepStatus(StrEnum):
    """How the latest attempt of a step stands."""

    STARTED = "STARTED"  # and not finished: for ever, when the run ended meanwhile
    DONE = "DONE"
    FAILED = "FAILED"  # a model call: tried again where the run says so, with a higher attempt
    ERROR = "ERROR"  # a tool call, like the next two: the model reads what went wrong
    TIMED_OUT = "TIMED_OUT"
    DENIED = "DENIED"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after its record at ``last_offset``. A snapshot in the log moves ``fold_from`` alone."""

    id: str
    first_offset: int
    last_offset: int
    fold_from: int
    last_progress_at: datetime
    status: Status
    reason: Reason | None
    detail: str
    waiting_tool_use_id: str | None
    retry_at: datetime | None
    model: str | None
    agent_hash: str | None
    started_at: datetime | None
    finished_at: datetime | None
    deadline: datetime
    token_budget: int | None  # a resumption may raise this and the next two
    cost_ceiling_usd: Decimal | None
    max_steps: int | None
    output: str
    steps: int
    input_tokens: int
    output_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    cache_read_tokens: int
    total_tokens: int
    wasted_tokens: int
    cost_usd: Decimal | None
    wasted_cost_usd: Decimal | None
    unsettled_tokens: int
    unsettled_cost_usd: Decimal | None

    @classmethod
    def of(cls, run: Run) -> "RunState":
        definition = run.started.definition if run.started else None
        model = definition.model if definition else run.request.model
        return cls(
            id=run.id,
            first_offset=run.first_offset,
            last_offset=run.last_offset,
            fold_from=run.fold_from,
            last_progress_at=moment(run.last_at),
            status=run.status,
            reason=run.reason,
            detail=stored(run.detail),
            waiting_tool_use_id=optional(run.waiting_tool_use_id),
            retry_at=None if run.status.final or run.reason is Reason.NEEDS_NEWER_VERSION else _moment(run.step.retry_at),
            model=optional(model),
            agent_hash=optional(definition.hash if definition else None),
            started_at=_moment(run.started_at),
            finished_at=_moment(run.finished_at),
            deadline=moment(run.deadline),
            token_budget=run.limits.token_budget,
            cost_ceiling_usd=run.limits.cost_ceiling,
            max_steps=run.limits.max_steps,
            output=stored(run.output),
            steps=counted(run.steps),
            **tokens(run.usage),
            total_tokens=counted(run.usage.total),
            wasted_tokens=counted(run.wasted.total),
            cost_usd=run.cost,
            wasted_cost_usd=run.wasted_cost,
            unsettled_tokens=counted(run.unsettled),
            unsettled_cost_usd=run.unsettled_cost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What a run's first RunRequested says of it; nothing changes it later."""

    id: str
    agent: str
    tenant: str | None
    input: str
    metadata: dict[str, str] | None
    request_digest: str | None
    timeout_ms: int | None
    progress_timeout_ms: int | None
    on_budget: OnBudget
    partition: int
    requested_at: datetime

    @classmethod
    def of(cls, run: Run) -> "RunRow":
        request, limits = run.request, run.request.limits
        return cls(
            id=run.id,
            agent=named(request.agent),
            tenant=None if request.tenant is None else named(request.tenant),
            input=stored(request.input),
            metadata=labels(request.metadata),
            request_digest=optional(request.request_digest),
            timeout_ms=limits.timeout_ms,
            progress_timeout_ms=limits.progress_timeout_ms,
            on_budget=limits.on_budget,
            partition=run.partition,
            requested_at=moment(run.requested_at),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """An attempt of a step began."""

    run_id: str
    seq: int
    run_first_offset: int  # which of several runs with this id, should the log hold such: only the first has rows
    kind: StepKind
    attempt: int
    started_at: datetime
    started_offset: int
    worker: str | None
    failures: int = 0
    wasted_tokens: int = 0
    wasted_cost_usd: Decimal | None = Decimal(0)
    model: str | None = None
    tool: str | None = None
    tool_use_id: str | None = None
    model_seq: int | None = None
    idempotency_key: str | None = None
    side_effect: SideEffect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """The attempt of a step that had begun ended. None: this says nothing of the column."""

    run_id: str
    seq: int
    run_first_offset: int
    status: StepStatus
    finished_at: datetime
    finished_offset: int
    latency_ms: int
    failures: int | None = None
    wasted_tokens: int | None = None
    wasted_cost_usd: Decimal | None = None  # says something exactly where wasted_tokens does
    model: str | None = None
    stop_reason: str | None = None
    modifiers: dict[str, str] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    cache_read_tokens: int | None = None
    cost_usd: Decimal | None = None
    error_reason: Reason | None = None
    error_type: str | None = None
    error_message: str | None = None
    http_status: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRow:
    """A record that could not be read. Its value is not kept: the log has it."""

    partition: int
    record_offset: int
    recorded_at: datetime
    key: str | None
    run_id: str | None
    record_type: str | None
    from_owner: bool
    value_bytes: int | None
    problem: Problem
    detail: str

    @classmethod
    def of(cls, delivery: Unreadable) -> "UnreadableRow":
        run_id = run_of(delivery)
        return cls(
            partition=delivery.partition,
            record_offset=delivery.offset,
            recorded_at=moment(delivery.timestamp),
            key=_text(delivery.key),
            run_id=run_id if is_run_id(run_id) else None,
            record_type=_text(delivery.type_header),
            from_owner=delivery.from_owner,
            value_bytes=None if delivery.value is None else len(delivery.value),
            problem=delivery.problem,
            detail=named(delivery.detail),
        )


def _text(of: bytes | None) -> str | None:
    """The beginning of what may be anything."""
    return None if of is None else named(of[:2000].decode("utf-8", "replace"))


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def labels(texts: dict[str, str] | None) -> dict[str, str] | None:
    """An object of texts, as the database can hold it."""
    return None if texts is None else {stored(key): stored(value) for key, value in texts.items()}
