"""What an audit remembers of one open run: its own bookkeeping, by rules of its own, beside the fold.

An auditor that only asked the fold would share its faults. So steps, sums and what an answer asked for are kept here from the raw
records; the fold is carried along for what only it can tell (digests, snapshots) and so that the two can be compared.
"""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

from runfold.core.events import (
    Command,
    CommandRejected,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Reason,
    Record,
    RunCancelRequested,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    StepAborted,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.core.run import Run, evolve

Call = tuple[int, str]  # model_seq, tool_use id
Result = ModelStepCompleted | ModelStepFailed | ToolStepFinished

LONGEST_ID = 500  # characters of a command's id that events repeat

_EXACT = Context(prec=100)


@dataclass(slots=True)
class Step:
    """One step that began. ``over``: it has its result, or failed for good. ``epoch`` is that of the newest start."""

    call: Call | None  # None: a model step
    attempt: int = 0
    epoch: int = -1
    open: bool = False
    over: bool = False
    repeatable: bool = True
    reserved: int = 0  # output tokens of a model step's newest attempt


@dataclass(frozen=True, slots=True)
class Answer:
    """The newest answer of the model. ``uses`` are the tool_use blocks that are to be run, as the model wrote them."""

    seq: int
    stop_reason: str
    uses: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class Trace:
    """Follow one run from its RunRequested to its RunFinished."""

    request: RunRequested
    requested_at: int
    limits: Limits  # as requested, or as the last resumption left them
    run: Run
    states: dict[int, Run]  # by last offset: after the newest event, and after each command since
    started: bool = False
    highest: int = 0  # seq that began
    model_seq: int = 0  # of the newest model step that began
    steps: dict[int, Step] = field(default_factory=dict)
    answer: Answer | None = None
    usage: Usage = field(default_factory=Usage)
    wasted: int = 0  # tokens
    unsettled: int = 0  # tokens that calls may have used at most whose end is not in the log
    prompt: int = 0  # tokens of the last one that was answered: the next begins with it
    cost: Decimal | None = Decimal(0)
    suspended: Reason | None = None
    waiting: str | None = None  # tool_use id that the suspension is about
    cancels: set[str] = field(default_factory=set)  # ids of commands, cut
    resumes: set[str] = field(default_factory=set)  # of those not answered

    @classmethod
    def begin(cls, record: Record, request: RunRequested) -> "Trace":
        run = evolve(None, record)
        assert run is not None
        return cls(request, record.timestamp, request.limits, run, {run.last_offset: run})

    @property
    def spent(self) -> int:
        """Tokens that count against the budget, without an attempt that is open."""
        return self.usage.total + self.wasted + self.unsettled

    def unheard(self, seq: int) -> int:
        """Tokens that the open attempt of a model step may have used at most, should nobody hear its end."""
        step = self.steps.get(seq)
        return self.prompt + step.reserved if step is not None and step.call is None and step.open else 0

    def fold(self, record: Record) -> bool:
        """Carry the fold along; whether the record changed it. Snapshots are passed over: they are what is to be checked."""
        if isinstance(record.event, RunSnapshotted):
            return False
        changed = evolve(self.run, record)
        if changed is None or changed is self.run:
            return False
        if not isinstance(record.event, Command):
            self.states.clear()
        self.states[record.offset] = self.run = changed
        return True

    def follow(self, record: Record) -> None:
        """Remember what a record says."""
        match record.event:
            case ModelStepStarted() as event:
                self.model_seq = max(self.model_seq, event.seq)
                self.unsettled += self.unheard(event.seq)
                self._begin(event, None)
                self.steps[event.seq].reserved = event.reserved_tokens
            case ToolStepStarted() as event:
                self._begin(event, (event.model_seq, event.tool_use_id))
                self.steps[event.seq].repeatable = event.repeatable
            case ModelStepCompleted() as event:
                self._end(event, over=True)
                self._pay(event)
                self.answer = Answer(event.seq, event.stop_reason, _uses(event))
            case ModelStepFailed() as event:
                self._waste(event)
                self._end(event, over=event.retry_at is None)
            case ToolStepFinished() as event:
                self._end(event, over=True)
            case StepAborted() as event:
                self.unsettled += self.unheard(event.seq)
                self._end(event, over=False)
            case RunStarted():
                self.started = True
            case RunCancelRequested() as event:
                self.cancels.add(event.command_id[:LONGEST_ID])
            case RunResumeRequested() as event:
                self.resumes.add(event.command_id)
            case CommandRejected() as event:
                self.resumes.discard(event.command_id)
            case RunSuspended() as event:
                self.suspended, self.waiting = event.reason, event.tool_use_id
            case RunResumed() as event:
                self._resume(event)
            case _:
                pass

    def _begin(self, event: ModelStepStarted | ToolStepStarted, call: Call | None) -> None:
        step = self.steps.setdefault(event.seq, Step(call))
        step.attempt, step.epoch, step.open = event.attempt, event.epoch, True
        self.highest = max(self.highest, event.seq)

    def _end(self, event: Result | StepAborted, *, over: bool) -> None:
        if (step := self.steps.get(event.seq)) is not None:
            step.open, step.over = False, over

    def _resume(self, event: RunResumed) -> None:
        """The step that the run stood at may begin again: a model step without an answer, or the call of unknown outcome.

        So may whatever was under way when a record that nobody can read stopped the run: it was aborted.
        """
        aborted, self.suspended = self.suspended is Reason.UNREADABLE_RECORD, None
        self.resumes.discard(event.command_id)
        changed = {name: getattr(event, name) for name in ("token_budget", "cost_ceiling", "max_steps")}
        self.limits = replace(self.limits, **{name: value for name, value in changed.items() if value is not None})
        for seq, step in self.steps.items():
            self.unsettled += self.unheard(seq)
            if step.call is None and (self.answer is None or seq > self.answer.seq):
                step.open = step.over = False
            elif step.call is not None and step.call[1] == self.waiting and not step.over:
                step.open = False
            elif aborted:
                step.epoch = -1

    def _waste(self, event: ModelStepFailed) -> None:
        if event.usage is not None:
            reserved = self.steps[event.seq].reserved if event.seq in self.steps else 0
            self.wasted += event.usage.total
            self.unsettled += max(reserved - event.usage.output_tokens, 0)
        elif event.reason is Reason.MODEL_TIMEOUT:
            self.unsettled += self.unheard(event.seq)

    def _pay(self, event: ModelStepCompleted) -> None:
        self.usage += event.usage
        self.prompt = event.usage.total - event.usage.output_tokens
        self.cost = None if self.cost is None or event.cost is None else _EXACT.add(self.cost, event.cost)


def _uses(event: ModelStepCompleted) -> tuple[dict[str, Any], ...]:
    """The calls that are to be made: none where the answer does not stop for them, or breaks the rules of the API."""
    if event.stop_reason != "tool_use":
        return ()
    try:
        blocks = json.loads(event.content_json)
        uses = tuple(block for block in blocks if block["type"] == "tool_use")
        twice = max(Counter(use["id"] for use in uses).values(), default=0) > 1
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return () if twice else uses
