"""A run folded from the log as the row the projector will make of it: only the columns that the API reads."""

from datetime import UTC, datetime, timedelta
from typing import Any

from runfold.core.run import Run

Row = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def row_of(run: Run) -> Row:
    return _request(run) | _state(run) | _spent(run)


def _request(run: Run) -> Row:
    request, limits = run.request, run.limits
    return {
        "id": run.id,
        "agent": request.agent,
        "tenant": request.tenant,
        "input": request.input,
        "metadata": request.metadata,
        "request_digest": request.request_digest,
        "token_budget": limits.token_budget,
        "cost_ceiling_usd": limits.cost_ceiling,
        "on_budget": limits.on_budget,
        "timeout_ms": limits.timeout_ms,
        "max_steps": limits.max_steps,
        "progress_timeout_ms": limits.progress_timeout_ms,
        "requested_at": _moment(run.requested_at),
        "deadline": _moment(run.deadline),
    }


def _state(run: Run) -> Row:
    return {
        "status": run.status,
        "reason": run.reason,
        "detail": run.detail,
        "waiting_tool_use_id": run.waiting_tool_use_id,
        "model": run.started.definition.model if run.started else run.request.model,
        "started_at": _moment(run.started_at),
        "finished_at": _moment(run.finished_at),
        "last_progress_at": _moment(run.last_at),
        "output": run.output,
        "steps": run.steps,
    }


def _spent(run: Run) -> Row:
    return {
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "cache_write_5m_tokens": run.usage.cache_write_5m_tokens,
        "cache_write_1h_tokens": run.usage.cache_write_1h_tokens,
        "cache_read_tokens": run.usage.cache_read_tokens,
        "total_tokens": run.usage.total,
        "cost_usd": run.cost,
        "wasted_tokens": run.wasted.total,
        "wasted_cost_usd": run.wasted_cost,
        "unsettled_tokens": run.unsettled,
        "unsettled_cost_usd": run.unsettled_cost,
    }


def _moment(ms: int | None) -> datetime | None:
    """A time; one beyond what a calendar holds is the last that it holds."""
    return None if ms is None else _EPOCH + timedelta(milliseconds=min(max(ms, 0), _LAST_MS))
