"""From a decision to the events that carry it out: the only place where the worker writes what a run is to do."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import assert_never

from runfold.core.decide import Attempt, decide, has_one_start_left
from runfold.core.decisions import Begin, CallModel, Decision, Finish, Reject, Resume, RunTools, Suspend, WaitUntil
from runfold.core.errors import ConfigError
from runfold.core.events import (
    CommandRejected,
    ModelStepStarted,
    Reason,
    RunEvent,
    RunFinished,
    RunResumed,
    RunResumeRequested,
    RunStarted,
    RunSuspended,
    Status,
    ToolStepStarted,
)
from runfold.core.limits import replace_limits
from runfold.core.reserving import Tariff
from runfold.core.run import Call, ModelStep, Run
from runfold.ports import Tools
from runfold.worker.flow import Flow, StepStarted
from runfold.worker.resources import Resources
from runfold.worker.size import LARGEST_BYTES, fits
from runfold.worker.slots import Slots
from runfold.worker.sound import LONGEST

Poke = Callable[[], None]


class Planner:
    """Decide for one run after the other and submit what follows. ``epoch`` is the lease's, ``since`` its broker time."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.epoch = self.since = -1

    def next_events(self, flow: Flow, now: int, poke: Poke) -> tuple[list[RunEvent], int | None]:
        """What to write now, and when to look again (broker ms; None when the run ends). Empty when the run only waits.

        Takes slots for the steps it starts; where none is free, ``poke`` is called when one may be.
        """
        wake: int | None = None
        events: list[RunEvent] = []
        if flow.held:
            flow.held_until = now
        since = max(self.since, flow.held_until)
        for decision in decide(flow.ahead, now, flow.hand, since, self._tariff(flow.ahead, now)):
            if isinstance(decision, WaitUntil):
                wake = decision.at
            else:
                events += self._events(decision, flow, poke)
        return events, wake

    def would_start(self, start: StepStarted, run: Run, now: int, busy: Collection[Attempt]) -> bool:
        """Whether the run wants just this start of a step, once the orders that wait are answered."""
        wanted: list[StepStarted] = []
        run = replace(run, resumes=())
        for decision in decide(run, now, busy, self.since, self._tariff(run, now)):
            if isinstance(decision, CallModel):
                wanted.append(self._model_start(decision, run))
            elif isinstance(decision, RunTools):
                tools = self.resources.agents.tools(run.request.agent)
                wanted += [self._tool_step(call, run, tools) for call in decision.calls]
        return replace(start, epoch=self.epoch) in wanted

    def _tariff(self, run: Run, now: int) -> Tariff | None:
        return self.resources.pricing.tariff(run.started.definition, now) if run.started else None

    def slots_of(self, event: RunEvent, run: Run) -> Slots | None:
        """Of what an event of `next_events` has taken one; ``run`` as it was then."""
        match event:
            case ModelStepStarted():
                return self._slots_for(run.step)
            case ToolStepStarted(seq=seq):
                return self._slots_for(next(call for call in run.calls if call.seq == seq))
            case _:
                return None

    def forgo_of(self, event: RunEvent, run: Run) -> Callable[[], None] | None:
        """Whom to tell if the step that ``event`` starts is dropped before it begins: its breaker may wait for that very call."""
        if not isinstance(event, ModelStepStarted) or run.started is None:
            return None
        return partial(self.resources.breakers.given_up, run.started.definition.model)

    def _slots_for(self, step: ModelStep | Call) -> Slots:
        if has_one_start_left(step):
            return self.resources.last_slots
        return self.resources.model_slots if isinstance(step, ModelStep) else self.resources.tool_slots

    def _events(self, decision: Decision, flow: Flow, poke: Poke) -> list[RunEvent]:
        run = flow.ahead
        match decision:
            case CallModel():
                return self._model_step(decision, flow, poke)
            case RunTools(calls=calls):
                return self._tool_steps(calls, run, poke)
            case Begin():
                return [self._begin(run)]
            case Suspend():
                return [self.suspended(decision, run)]
            case Resume(command=command):
                return [self._resume(command, run)]
            case Reject():
                return [self._reject(decision, run)]
            case Finish():
                return [self._finish(decision, run)]
            case WaitUntil():
                return []
            case _:
                assert_never(decision)

    def _begin(self, run: Run) -> RunEvent:
        request = run.request
        try:
            agents = self.resources.agents
            definition = agents.definition(request.agent, model=request.model, max_tokens=request.max_tokens)
        except ConfigError as error:
            return self._finish(Finish(Status.FAILED, Reason.CONFIG, str(error)[:500]), run)
        if definition is None:
            detail = f"this worker serves no agent {request.agent[:100]!r}, only {agents}"
            return self._finish(Finish(Status.FAILED, Reason.UNKNOWN_AGENT, detail), run)
        if request.limits.cost_ceiling is not None and self.resources.pricing.tariff(definition, run.requested_at) is None:
            detail = f"the run has a cost ceiling and model {definition.model[:100]!r}, as its agent asks it, has no known price"
            return self._finish(Finish(Status.FAILED, Reason.CONFIG, detail), run)
        started = RunStarted(run_id=run.id, epoch=self.epoch, definition=definition, deadline=run.deadline)
        if not fits(started):
            detail = f"the agent's definition is larger than the {LARGEST_BYTES} bytes that one record of the log takes"
            return self._finish(Finish(Status.FAILED, Reason.CONFIG, detail), run)
        return started

    def _model_step(self, decision: CallModel, flow: Flow, poke: Poke) -> list[RunEvent]:
        run = flow.ahead
        assert run.started is not None
        model, breakers = run.started.definition.model, self.resources.breakers
        flow.held = not breakers.admits(model, run.id, poke)
        if flow.held or not self._slots_for(run.step).take(run.id, poke):
            return []
        breakers.started(model)
        return [self._model_start(decision, run)]

    def _model_start(self, decision: CallModel, run: Run) -> ModelStepStarted:
        return ModelStepStarted(
            run_id=run.id,
            epoch=self.epoch,
            seq=decision.seq,
            attempt=decision.attempt,
            prefix_digest=run.digest,
            reserved_tokens=decision.max_tokens,
            reserved_cost=decision.max_cost,
        )

    def _tool_steps(self, calls: tuple[Call, ...], run: Run, poke: Poke) -> list[RunEvent]:
        tools = self.resources.agents.tools(run.request.agent)
        due = {call.seq for call in calls}
        open_calls = [call for call in run.calls if call.open and call.seq not in due]
        steps = [self._tool_step(call, run, tools) for call in calls]
        if not all(map(fits, steps)):
            detail = f"a tool call is larger than the {LARGEST_BYTES} bytes that one record of the log takes"
            return [self._finish(Finish(Status.FAILED, Reason.INVALID_MODEL_RESPONSE, detail), run)]
        started: list[RunEvent] = []
        for call, step in zip(calls, steps, strict=True):
            beside = [*open_calls, *calls[: len(started)]]
            if beside and not all(tools.policy(other.name).parallel for other in (call, *beside)):
                break
            if not self._slots_for(call).take(run.id, poke):
                break
            started.append(step)
        return started

    def _tool_step(self, call: Call, run: Run, tools: Tools) -> ToolStepStarted:
        policy = tools.policy(call.name)
        return ToolStepStarted(
            run_id=run.id,
            epoch=self.epoch,
            seq=call.seq,
            model_seq=call.model_seq,
            tool_use_id=call.id,
            name=call.name,
            input_json=call.input_json,
            idempotency_key=f"{run.id}/{call.model_seq}/{call.id}",
            attempt=call.attempt + 1,
            side_effect=policy.side_effect,
            repeatable=policy.repeatable,
        )

    def suspended(self, decision: Suspend, run: Run) -> RunSuspended:
        return RunSuspended(
            run_id=run.id, epoch=self.epoch, reason=decision.reason, detail=decision.detail, tool_use_id=decision.tool_use_id
        )

    def _resume(self, command: RunResumeRequested, run: Run) -> RunResumed:
        limits = replace_limits(run.limits, command)
        return RunResumed(
            run_id=run.id,
            epoch=self.epoch,
            command_id=command.command_id,
            token_budget=limits.token_budget,
            cost_ceiling=limits.cost_ceiling,
            max_steps=limits.max_steps,
        )

    def _reject(self, decision: Reject, run: Run) -> CommandRejected:
        return CommandRejected(run_id=run.id, epoch=self.epoch, command_id=decision.command_id, reason=decision.reason)

    def _finish(self, decision: Finish, run: Run) -> RunFinished:
        return RunFinished(
            run_id=run.id,
            epoch=self.epoch,
            status=decision.status,
            reason=decision.reason,
            detail=decision.detail[:LONGEST],
            output=run.output,
            command_id=decision.command_id and decision.command_id[:LONGEST],
            steps=run.steps,
            usage=run.usage,
            cost=run.cost,
        )
