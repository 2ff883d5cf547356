"""Events to freeze as bytes: one of each record type with everything set, one with all set to null that can be."""

from collections.abc import Iterator
from dataclasses import fields, replace
from decimal import Decimal
from types import NoneType
from typing import Any, get_args, get_type_hints

from runfold.core.events import (
    AgentDefinition,
    CommandRejected,
    Event,
    LeaseAcquired,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    OnBudget,
    Reason,
    Rejection,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    SideEffect,
    Status,
    StepAborted,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)

RUN = "6f1c0a52-8c1e-4b7e-9a51-0d2f6b1c7e10"
USAGE = Usage(input_tokens=812, output_tokens=64, cache_write_5m_tokens=1, cache_write_1h_tokens=2, cache_read_tokens=70_000)
STEP: dict[str, Any] = {"run_id": RUN, "epoch": 123_456, "seq": 2, "attempt": 3}

FULL: list[Event] = [
    RunRequested(
        run_id=RUN,
        agent="tickets",
        input="Which acme tickets are overdue? ✓ \U0001f642 \x00",
        limits=Limits(
            token_budget=50_000,
            cost_ceiling=Decimal("1.50"),
            timeout_ms=300_000,
            max_steps=40,
            progress_timeout_ms=60_000,
            on_budget=OnBudget.FAIL,
        ),
        model="claude-sonnet-4-5",
        max_tokens=4096,
        metadata={"team": "support"},
        tenant="acme",
        request_digest="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ),
    RunCancelRequested(run_id=RUN, command_id="c-1", requested_by="alice", detail="no longer needed"),
    LeaseAcquired(partition=3, worker="worker-A", build="0.1.0"),
    RunStarted(
        run_id=RUN,
        epoch=123_456,
        definition=AgentDefinition(
            name="tickets",
            model="claude-sonnet-4-5",
            max_tokens=4096,
            system_json='[{"type":"text","text":"Be brief."}]',
            tools_json='[{"name":"list_tickets","input_schema":{"type":"object"}}]',
            options_json='{"temperature":0}',
            cache_ttl="1h",
            hash="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
        ),
        deadline=1_767_225_600_123,
    ),
    ModelStepStarted(
        **STEP, prefix_digest="fcde2b2edba56bf408601fb721fe9b5c", reserved_tokens=4096, reserved_cost=Decimal("0.08192")
    ),
    ModelStepCompleted(
        **STEP,
        content_json='[{"type":"tool_use","id":"toolu_01Ab","name":"list_tickets","input":{"n":1.0}}]',
        stop_reason="tool_use",
        stop_details_json='{"category":null}',
        usage=USAGE,
        cost=Decimal("0.003408000001"),
        model="claude-sonnet-4-5-20250929",
        message_id="msg_01",
        request_id="req_01",
        latency_ms=1830,
        modifiers={"service_tier": "standard"},
    ),
    ModelStepFailed(
        **STEP,
        reason=Reason.OVERLOADED,
        http_status=529,
        error_type="overloaded_error",
        message="Overloaded",
        retry_at=1_767_225_600_456,
        usage=USAGE,
        request_id="req_02",
        latency_ms=312,
        cost=Decimal("0.0019"),
    ),
    ToolStepStarted(
        **STEP,
        model_seq=1,
        tool_use_id="toolu_01Ab",
        name="list_tickets",
        input_json='{"customer":"acme"}',
        idempotency_key=f"{RUN}/1/toolu_01Ab",
        side_effect=SideEffect.EXTERNAL,
        repeatable=True,
    ),
    ToolStepFinished(
        **STEP,
        model_seq=1,
        tool_use_id="toolu_01Ab",
        status=ToolStatus.DENIED,
        content_json='"not allowed"',
        latency_ms=41,
    ),
    RunSuspended(run_id=RUN, epoch=123_456, reason=Reason.OUTCOME_UNKNOWN, detail="did it happen?", tool_use_id="toolu_01Ab"),
    RunResumeRequested(
        run_id=RUN,
        command_id="c-3",
        requested_by="bob",
        detail="go on",
        token_budget=10_000,
        cost_ceiling=Decimal("1.5"),
        max_steps=40,
    ),
    RunResumed(
        run_id=RUN, epoch=123_456, command_id="c-3", token_budget=10_000, cost_ceiling=Decimal("1.5"), max_steps=40
    ),
    RunFinished(
        run_id=RUN,
        epoch=123_456,
        status=Status.CANCELLED,
        reason=Reason.CANCEL,
        detail="by alice",
        output="Ticket 17.",
        command_id="c-1",
        steps=3,
        usage=USAGE,
        cost=Decimal("-0.000000000001"),
    ),
    StepAborted(run_id=RUN, epoch=123_456, seq=2, attempt=1),
    CommandRejected(run_id=RUN, epoch=123_456, command_id="c-2", reason=Rejection.RUN_FINISHED),
    RunSnapshotted(run_id=RUN, epoch=123_456, last_offset=123_460, state_version=1, state_json="{}"),
]


def samples() -> Iterator[tuple[str, Event]]:
    """Name and event of everything to freeze."""
    for event in FULL:
        yield type(event).__name__, event
        if (bare := bared(event)) != event:
            yield f"{type(event).__name__}.bare", bare


def bared(event: Any) -> Any:
    """``event`` with null wherever the contract allows it, in nested records too."""
    hints = get_type_hints(type(event))
    changes: dict[str, Any] = {}
    for field in fields(event):
        hint, value = hints[field.name], getattr(event, field.name)
        if NoneType in get_args(hint):
            changes[field.name] = None
        elif hasattr(value, "__dataclass_fields__"):
            changes[field.name] = bared(value)
    return replace(event, **changes)
