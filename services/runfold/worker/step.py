"""The two kinds of step, performed: from the event that started one to the event that says how it ended.

Nothing here touches the log or the run: a step is told what it needs and answers with one event. The event's epoch is that of its
start; whoever appends it puts the lease of the day in.
"""

import asyncio
import logging
from collections.abc import Callable
from decimal import Decimal

from runfold.core.decide import OUTCOME_UNKNOWN_WAYS
from runfold.core.errors import ModelFailure
from runfold.core.events import (
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Reason,
    RunSuspended,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.run import Run
from runfold.ports import LiveEnd, Model, ModelAnswer, ModelRequest, ToolCallRequest
from runfold.worker.clock import BrokerClock
from runfold.worker.live import Telling
from runfold.worker.resources import Resources
from runfold.worker.sound import sound, tidy

log = logging.getLogger(__name__)


async def call_model(
    resources: Resources, clock: BrokerClock, run: Run, event: ModelStepStarted
) -> ModelStepCompleted | ModelStepFailed:
    """One attempt of a model step. Raises nothing but CancelledError."""
    began = _seconds()
    telling = Telling(resources.live, event)
    request = model_request(run, event, telling.heard)
    try:
        outcome = await _complete(resources.model, request)
    except asyncio.CancelledError:
        telling.end(LiveEnd.CUT)
        resources.breakers.given_up(request.model)
        raise
    telling.end(LiveEnd.FAILED if isinstance(outcome, ModelFailure) else LiveEnd.COMPLETE)
    resources.breakers.heard(request.model, outcome if isinstance(outcome, ModelFailure) else None)
    if isinstance(outcome, ModelFailure):
        return _failed(resources, clock, run, event, outcome, _since(began))
    return _completed(resources, clock, event, outcome, _since(began))


async def _complete(model: Model, request: ModelRequest) -> ModelAnswer | ModelFailure:
    try:
        return sound(await model.complete(request))
    except ModelFailure as failure:
        return failure
    except Exception as error:  # a fault of ours or of the SDK: it must not escape the step, nor be retried for money
        log.exception("the model port raised what it must not")
        return ModelFailure(Reason.CONFIG, f"{type(error).__name__}: {error}", retryable=False)


def model_request(run: Run, event: ModelStepStarted, heard: Callable[[str], None] | None) -> ModelRequest:
    """What the attempt that ``event`` starts asks of the model. ``heard``: see `runfold.ports.ModelRequest`."""
    assert run.started is not None
    definition = run.started.definition
    return ModelRequest(
        run_id=run.id,
        seq=event.seq,
        attempt=event.attempt,
        model=definition.model,
        max_tokens=event.reserved_tokens,
        system_json=definition.system_json,
        tools_json=definition.tools_json,
        options_json=definition.options_json,
        messages=run.messages,
        cache_ttl=definition.cache_ttl,
        heard=heard,
    )


def _completed(
    resources: Resources, clock: BrokerClock, event: ModelStepStarted, answer: ModelAnswer, latency: int
) -> ModelStepCompleted:
    return ModelStepCompleted(
        run_id=event.run_id,
        epoch=event.epoch,
        seq=event.seq,
        attempt=event.attempt,
        content_json=answer.content_json,
        stop_reason=answer.stop_reason,
        stop_details_json=answer.stop_details_json,
        usage=answer.usage,
        cost=resources.pricing.cost(answer.model, answer.usage, clock.now(), answer.modifiers or {}),
        modifiers=answer.modifiers,
        model=answer.model,
        message_id=answer.message_id,
        request_id=answer.request_id,
        latency_ms=latency,
    )


def _failed(
    resources: Resources, clock: BrokerClock, run: Run, event: ModelStepStarted, failure: ModelFailure, latency: int
) -> ModelStepFailed:
    failure, delay = tidy(failure), None
    if failure.retryable:
        overloaded = failure.reason is Reason.OVERLOADED
        failures = 1 + (run.step.overloads if overloaded else run.step.mishaps)
        delay = resources.retries.delay(failures, failure.retry_after, resources.draw(), overloaded=overloaded)
    return ModelStepFailed(
        run_id=event.run_id,
        epoch=event.epoch,
        seq=event.seq,
        attempt=event.attempt,
        reason=failure.reason,
        http_status=failure.http_status,
        error_type=failure.error_type,
        message=failure.message,
        retry_at=None if delay is None else clock.now() + round(delay * 1000),
        usage=failure.usage,
        cost=_wasted(resources, clock, run, failure),
        request_id=failure.request_id,
        latency_ms=latency,
    )


def _wasted(resources: Resources, clock: BrokerClock, run: Run, failure: ModelFailure) -> Decimal | None:
    if failure.usage is None or run.started is None:
        return None
    model = failure.model or run.started.definition.model
    return resources.pricing.cost(model, failure.usage, clock.now(), failure.modifiers or {})


async def call_tool(resources: Resources, run: Run, event: ToolStepStarted) -> ToolStepFinished | RunSuspended:
    """One execution of a tool call. Raises nothing but CancelledError."""
    began = _seconds()
    request = ToolCallRequest(
        run_id=event.run_id,
        seq=event.seq,
        model_seq=event.model_seq,
        tool_use_id=event.tool_use_id,
        name=event.name,
        input_json=event.input_json,
        idempotency_key=event.idempotency_key,
        attempt=event.attempt,
    )
    result = await resources.agents.tools(run.request.agent).call(request)
    if result.status is ToolStatus.TIMED_OUT and not event.repeatable:
        return RunSuspended(
            run_id=event.run_id,
            epoch=event.epoch,
            reason=Reason.OUTCOME_UNKNOWN,
            detail=f"tool {event.name[:100]!r} timed out; it can't be repeated and whether it took effect is not known. "
            + OUTCOME_UNKNOWN_WAYS,
            tool_use_id=event.tool_use_id,
        )
    return ToolStepFinished(
        run_id=event.run_id,
        epoch=event.epoch,
        seq=event.seq,
        model_seq=event.model_seq,
        tool_use_id=event.tool_use_id,
        attempt=event.attempt,
        status=result.status,
        content_json=result.content_json,
        latency_ms=_since(began),
    )


def _seconds() -> float:
    return asyncio.get_running_loop().time()


def _since(began: float) -> int:
    return round((_seconds() - began) * 1000)
