"""What a record says of the step it is about. Pure, so a rebuild is a replay.

A step's row is what the records of its latest attempt say; a run's row is what the fold says of the run (`RunRow`, `RunState`). A
record that changed nothing is never brought here: `Shard.apply` has answered with `Ignored`.
"""

import json
from typing import assert_never

from runfold.core.events import (
    CommandRejected,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Record,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    StepAborted,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.run import Run
from runfold_projector.rows import StepEnd, StepKind, StepStart, StepStatus, labels
from runfold_projector.values import counted, moment, optional, stored, tokens

_MESSAGE_CHARACTERS = 500


def project(record: Record, run: Run, worker: str | None) -> StepStart | StepEnd | None:
    """The change of a step's row. ``run`` is the run as ``record`` left it, ``worker`` holds the partition's lease.

    None: the record is about the run as a whole.
    """
    match record.event:
        case ModelStepStarted() as event:
            return _model_started(event, record, run, worker)
        case ModelStepCompleted() as event:
            return _model_completed(event, record, run)
        case ModelStepFailed() as event:
            return _model_failed(event, record, run)
        case ToolStepStarted() as event:
            return _tool_started(event, record, run, worker)
        case ToolStepFinished() as event:
            return _tool_finished(event, record, run)
        case RunRequested() | RunStarted() | RunSuspended() | RunResumed() | RunFinished() | StepAborted():
            return None
        case RunCancelRequested() | RunResumeRequested() | CommandRejected() | LeaseAcquired() | RunSnapshotted():
            return None
        case _:
            assert_never(record.event)


def _model_started(event: ModelStepStarted, record: Record, run: Run, worker: str | None) -> StepStart:
    return StepStart(
        run_id=run.id,
        seq=event.seq,
        run_first_offset=run.first_offset,
        kind=StepKind.MODEL,
        attempt=event.attempt,
        started_at=moment(record.timestamp),
        started_offset=record.offset,
        worker=optional(worker),
        failures=run.step.failures,
        wasted_tokens=counted(run.step.wasted),
        wasted_cost_usd=run.step.wasted_cost,
        model=stored(run.started.definition.model) if run.started else None,
    )


def _model_completed(event: ModelStepCompleted, record: Record, run: Run) -> StepEnd:
    return StepEnd(
        run_id=run.id,
        seq=event.seq,
        run_first_offset=run.first_offset,
        status=StepStatus.DONE,
        finished_at=moment(record.timestamp),
        finished_offset=record.offset,
        latency_ms=event.latency_ms,
        model=stored(event.model),
        stop_reason=stored(event.stop_reason),
        **tokens(event.usage),
        cost_usd=event.cost,
        modifiers=labels(event.modifiers),
        request_id=optional(event.request_id),
    )


def _model_failed(event: ModelStepFailed, record: Record, run: Run) -> StepEnd:
    return StepEnd(
        run_id=run.id,
        seq=event.seq,
        run_first_offset=run.first_offset,
        status=StepStatus.FAILED,
        finished_at=moment(record.timestamp),
        finished_offset=record.offset,
        latency_ms=event.latency_ms,
        failures=run.step.failures,
        wasted_tokens=counted(run.step.wasted),
        wasted_cost_usd=run.step.wasted_cost,
        error_reason=event.reason,
        error_type=optional(event.error_type),
        error_message=stored(event.message[:_MESSAGE_CHARACTERS]),
        http_status=event.http_status,
        request_id=optional(event.request_id),
    )


def _tool_started(event: ToolStepStarted, record: Record, run: Run, worker: str | None) -> StepStart:
    return StepStart(
        run_id=run.id,
        seq=event.seq,
        run_first_offset=run.first_offset,
        kind=StepKind.TOOL,
        attempt=event.attempt,
        started_at=moment(record.timestamp),
        started_offset=record.offset,
        worker=optional(worker),
        tool=stored(event.name),
        tool_use_id=stored(event.tool_use_id),
        model_seq=event.model_seq,
        idempotency_key=stored(event.idempotency_key),
        side_effect=event.side_effect,
    )


def _tool_finished(event: ToolStepFinished, record: Record, run: Run) -> StepEnd:
    done = event.status is ToolStatus.DONE
    return StepEnd(
        run_id=run.id,
        seq=event.seq,
        run_first_offset=run.first_offset,
        status=StepStatus(event.status.value),
        finished_at=moment(record.timestamp),
        finished_offset=record.offset,
        latency_ms=event.latency_ms,
        error_message=None if done else _said(event.content_json),
    )


def _said(content_json: str) -> str:
    """The beginning of what the model read; the text itself where it was one text."""
    try:
        content = json.loads(content_json)
    except (ValueError, RecursionError):
        content = None
    return stored((content if isinstance(content, str) else content_json)[:_MESSAGE_CHARACTERS])
