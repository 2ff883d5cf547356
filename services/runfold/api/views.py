"""What the API answers with. Field names are those of the projection's columns, in camelCase; docs/http-api.md explains each.

Money is a JSON number rounded to a double; the exact value is in the projection. Times are RFC 3339 in UTC, from the broker's
clock. null means: not yet, not set, or not known.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from runfold.api.camel import camel
from runfold.core.events import OnBudget, Reason, SideEffect, Status


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else (ms // 1000 if ms % 1000 == 0 else ms / 1000)


Usd = Annotated[Decimal, PlainSerializer(float, return_type=float)]
Seconds = Annotated[int | float | None, BeforeValidator(_seconds)]


class View(BaseModel):
    """Read from a row, whose further columns are left out."""

    model_config = ConfigDict(alias_generator=camel, validate_by_name=True, validate_by_alias=False, frozen=True)


class RunSummary(View):
    """A run in a list."""

    id: str
    status: Status
    reason: Reason | None
    detail: str
    waiting_tool_use_id: str | None = Field(description="The tool call that a suspended run is about.")
    agent: str
    model: str | None
    tenant: str | None
    metadata: dict[str, str] | None
    steps: int = Field(description="Steps begun so far.")
    input_tokens: int = Field(description="Without cached ones.")
    output_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    cache_read_tokens: int
    total_tokens: int = Field(description="Of all answers: the sum of the five before.")
    wasted_tokens: int = Field(description="Of failed model calls, where known. They count against the token budget, too.")
    unsettled_tokens: int = Field(description="That calls whose end is not known may have used at most; they count, too.")
    cost_usd: Usd | None = Field(description="Of all answers. null: not known, for one of them has no known price.")
    wasted_cost_usd: Usd | None = Field(description="Of failed model calls. null: not known.")
    unsettled_cost_usd: Usd | None = Field(description="Of calls whose end is not known, at most. null: not known.")
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    last_progress_at: datetime = Field(description="When a record last changed the run; of a suspended one: since when it waits.")
    deadline: datetime


class RunView(RunSummary):
    """A run."""

    input: str
    output: str
    token_budget: int | None
    cost_ceiling_usd: Usd | None
    on_budget: OnBudget
    timeout_ms: Seconds = Field(serialization_alias="timeoutSeconds")
    max_steps: int | None
    progress_timeout_ms: Seconds = Field(serialization_alias="progressTimeoutSeconds")


class StepView(View):
    """A step: its latest attempt."""

    seq: int
    kind: Literal["MODEL", "TOOL"]
    status: str = Field(description="STARTED, DONE, FAILED (model), ERROR, TIMED_OUT or DENIED (tool).")
    attempt: int
    model: str | None
    stop_reason: str | None
    tool: str | None
    tool_use_id: str | None
    model_seq: int | None = Field(description="The model step that asked for this tool call.")
    side_effect: SideEffect | None
    input_tokens: int | None
    output_tokens: int | None
    cache_write_5m_tokens: int | None
    cache_write_1h_tokens: int | None
    cache_read_tokens: int | None
    latency_ms: int | None
    cost_usd: Usd | None
    modifiers: dict[str, str] | None = Field(description="What else the cost depends on, as the API reported it.")
    wasted_tokens: int = Field(description="Of the attempts that failed, where known.")
    wasted_cost_usd: Usd | None = Field(description="Of these. null: not known.")
    worker: str | None
    started_at: datetime
    finished_at: datetime | None
    error_reason: Reason | None
    error_message: str | None


class RunPage(View):
    """Part of the list of runs, newest first."""

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="The `cursor` of the next page; null: this is the last.")


class RunStatus(View):
    """A run and where it stands."""

    id: str
    status: Status


class ErrorDetail(BaseModel):
    """Further members depend on the code."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str
    field: str | None = None


class ErrorBody(BaseModel):
    """Every error."""

    error: ErrorDetail

