"""Oracles O4 and O5: what the tables must hold for a log, worked out record by record and without the projector's own code.

`assert_tables_equal_fold` is for any test that has a log and a database that a projector has brought level with it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from runfold.core.events import (
    Delivery,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Problem,
    Record,
    RunFinished,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
    Usage,
)
from runfold.core.run import Run
from runfold.core.shard import Shard

Row = dict[str, Any]
Tables = dict[str, list[Row]]

_TOKENS = ("input_tokens", "output_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "cache_read_tokens")


def dump(dsn: str, schema: str = "public") -> Tables:
    """Every row of every table that the log determines, in the order of its key; all columns, but `updated_at`."""
    keys = {
        "run": "id",
        "run_step": "run_id, seq",
        "projection_offset": "topic, partition",
        "unreadable_record": "partition, record_offset",
    }
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return {table: _rows(connection, schema, table, key) for table, key in keys.items()}


def _rows(connection: psycopg.Connection[Row], schema: str, table: str, key: str) -> list[Row]:
    statement = sql.SQL("select * from {} order by " + key).format(sql.Identifier(schema, table))
    return [{name: value for name, value in row.items() if name != "updated_at"} for row in connection.execute(statement)]


def assert_tables_equal_fold(dsn: str, logs: Sequence[Iterable[Delivery]], schema: str = "public") -> None:
    """The tables hold what ``logs``, one per partition from its beginning, say; and nothing else."""
    runs, steps, answers = _expected(logs)
    found = dump(dsn, schema)
    assert [_comparable(row) for row in found["run"]] == sorted(runs.values(), key=lambda row: row["id"])
    assert [_comparable(row) for row in found["run_step"]] == [steps[key] for key in sorted(steps)]
    places = [(row["partition"], row["record_offset"], row["problem"], row["detail"]) for row in found["unreadable_record"]]
    assert places == sorted(_unreadable(logs)), "what could not be read"
    _assert_sums(found, answers)


def _unreadable(logs: Sequence[Iterable[Delivery]]) -> Iterator[tuple[int, int, str, str]]:
    for log in logs:
        for delivery in log:
            if isinstance(delivery, Unreadable):
                yield delivery.partition, delivery.offset, delivery.problem.value, delivery.detail[:500].replace("\0", "\ufffd")


def _assert_sums(found: Tables, answers: list[ModelStepCompleted]) -> None:
    """O5, for both tables."""
    for kind in _TOKENS:
        paid = sum(getattr(event.usage, kind) for event in answers)
        assert sum(row[kind] for row in found["run"]) == paid, kind
        assert sum(row[kind] or 0 for row in found["run_step"]) == paid, kind
    assert sum(row["total_tokens"] for row in found["run"]) == sum(event.usage.total for event in answers)
    assert sum(row["cost_usd"] or 0 for row in found["run_step"]) == sum(event.cost or 0 for event in answers)
    priced = {row["id"]: row["cost_usd"] for row in found["run"] if row["cost_usd"] is not None}
    by_step = dict.fromkeys(priced, Decimal(0))
    for row in found["run_step"]:
        if row["run_id"] in by_step:
            by_step[row["run_id"]] += row["cost_usd"] or 0
    assert by_step == priced


def _expected(logs: Sequence[Iterable[Delivery]]) -> tuple[dict[str, Row], dict[tuple[str, int], Row], list[ModelStepCompleted]]:
    runs: dict[str, Row] = {}
    steps: dict[tuple[str, int], Row] = {}
    answers: list[ModelStepCompleted] = []
    for log in logs:
        shard, worker, waiting = Shard(-1), None, dict[str, Row]()
        for record in log:
            if not isinstance(record, Record):
                _wait(record, shard, waiting, runs)
                continue
            if isinstance(record.event, LeaseAcquired):
                worker = record.event.worker
            if isinstance(run := shard.apply(record), Run):
                if isinstance(record.event, RunFinished):  # a snapshot too would do, of somebody who has read all
                    waiting.pop(run.id, None)
                runs[run.id] = _run_row(run) | waiting.get(run.id, {})
                _step_row(steps, record, run, worker)
                if isinstance(record.event, ModelStepCompleted):
                    answers.append(record.event)
    return runs, steps, answers


def _wait(unreadable: Unreadable, shard: Shard, waiting: dict[str, Row], runs: dict[str, Row]) -> None:
    """For a newer version, where an open run lacks what only that can read."""
    run = shard.runs.get((unreadable.key or b"").decode("ascii", "replace"))
    if run is not None and unreadable.problem is Problem.UNKNOWN_SCHEMA:
        place = f"{unreadable.partition}/{unreadable.offset}"
        detail = f"the record at {place} is for a newer version to read: {unreadable.detail}"
        waiting[run.id] = {"status": "SUSPENDED", "reason": "NEEDS_NEWER_VERSION", "detail": detail}
        runs[run.id] |= waiting[run.id]


def _run_row(run: Run) -> Row:
    definition, limits = run.started and run.started.definition, run.limits
    return {
        "id": run.id,
        "agent": run.request.agent,
        "tenant": run.request.tenant,
        "status": run.status.value,
        "reason": run.reason and run.reason.value,
        "detail": run.detail,
        "waiting_tool_use_id": run.waiting_tool_use_id,
        "retry_at": _time(None if run.status.final else run.step.retry_at),
        "input": run.request.input,
        "output": run.output,
        "metadata": run.request.metadata,
        "model": definition.model if definition else run.request.model,
        "agent_hash": definition and definition.hash,
        "requested_at": _time(run.requested_at),
        "started_at": _time(run.started_at),
        "finished_at": _time(run.finished_at),
        "last_progress_at": _time(run.last_at),
        "deadline": _time(run.deadline),
        "token_budget": limits.token_budget,
        "cost_ceiling_usd": limits.cost_ceiling,
        "timeout_ms": limits.timeout_ms,
        "max_steps": limits.max_steps,
        "progress_timeout_ms": limits.progress_timeout_ms,
        "steps": run.steps,
        **_tokens(run.usage),
        "total_tokens": run.usage.total,
        "wasted_tokens": run.wasted.total,
        "cost_usd": run.cost,
        "on_budget": run.request.limits.on_budget.value,
        "wasted_cost_usd": run.wasted_cost,
        "unsettled_tokens": run.unsettled,
        "unsettled_cost_usd": run.unsettled_cost,
        "request_digest": run.request.request_digest,
        "partition": run.partition,
        "first_offset": run.first_offset,
        "last_offset": run.last_offset,
        "fold_from": run.fold_from,
    }


def _step_row(steps: dict[tuple[str, int], Row], record: Record, run: Run, worker: str | None) -> None:
    """What ``record``, which counted, makes of the steps."""
    match record.event:
        case ModelStepStarted() | ToolStepStarted() as event:
            before = steps.get((run.id, event.seq), {"wasted_tokens": 0, "wasted_cost_usd": Decimal(0)})
            wasted = {name: before[name] for name in ("wasted_tokens", "wasted_cost_usd")}
            steps[run.id, event.seq] = _started(event, record, run, worker) | wasted
        case ModelStepCompleted() as event:
            ended = {"status": "DONE", "model": event.model, "stop_reason": event.stop_reason, "cost_usd": event.cost}
            steps[run.id, event.seq] |= ended | _tokens(event.usage) | _ended(event, record)
            steps[run.id, event.seq] |= {"modifiers": event.modifiers, "request_id": event.request_id}
        case ModelStepFailed() as event:
            error = {"error_reason": event.reason.value, "error_type": event.error_type, "error_message": event.message}
            steps[run.id, event.seq] |= {"status": "FAILED", "http_status": event.http_status} | error | _ended(event, record)
            steps[run.id, event.seq] |= {"failures": steps[run.id, event.seq]["failures"] + 1, "request_id": event.request_id}
            if event.usage is not None:
                steps[run.id, event.seq] |= _wasted(steps[run.id, event.seq], event)
        case ToolStepFinished() as event:
            said = None if event.status is ToolStatus.DONE else event.content_json.strip('"')
            steps[run.id, event.seq] |= {"status": event.status.value, "error_message": said} | _ended(event, record)


def _started(event: ModelStepStarted | ToolStepStarted, record: Record, run: Run, worker: str | None) -> Row:
    tool = event if isinstance(event, ToolStepStarted) else None
    nothing = (*_TOKENS, "stop_reason", "modifiers", "cost_usd", "latency_ms")
    errors = ("error_reason", "error_type", "error_message", "http_status")
    return dict.fromkeys((*nothing, *errors, "request_id", "finished_at", "finished_offset")) | {
        "run_id": run.id,
        "seq": event.seq,
        "kind": "TOOL" if tool else "MODEL",
        "status": "STARTED",
        "attempt": event.attempt,
        "failures": 0 if tool else run.step.failures,
        "model": None if tool else run.started and run.started.definition.model,
        "model_seq": tool and tool.model_seq,
        "tool": tool and tool.name,
        "tool_use_id": tool and tool.tool_use_id,
        "idempotency_key": tool and tool.idempotency_key,
        "side_effect": tool and tool.side_effect.value,
        "worker": worker,
        "started_at": _time(record.timestamp),
        "started_offset": record.offset,
        "last_offset": record.offset,
    }


def _wasted(row: Row, event: ModelStepFailed) -> Row:
    assert event.usage is not None
    known = row["wasted_cost_usd"] is not None and event.cost is not None
    cost = row["wasted_cost_usd"] + event.cost if known else None
    return {"wasted_tokens": row["wasted_tokens"] + event.usage.total, "wasted_cost_usd": cost}


def _ended(event: ModelStepCompleted | ModelStepFailed | ToolStepFinished, record: Record) -> Row:
    return {
        "latency_ms": event.latency_ms,
        "finished_at": _time(record.timestamp),
        "finished_offset": record.offset,
        "last_offset": record.offset,
    }


def _tokens(usage: Usage) -> Row:
    return {kind: getattr(usage, kind) for kind in _TOKENS}


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _comparable(row: Row) -> Row:
    """Ids as texts."""
    return row | {name: str(row[name]) for name in ("id", "run_id") if name in row}
