"""A run, rebuilt from its records. `evolve` is the only place where run state changes. Its rules:

1. A run begins with the first RunRequested of its id; every later one is ignored. First record in log order wins, everywhere.
2. After RunFinished nothing changes a run.
3. Commands wait in the inbox until an owner's event consumes them by id: state never depends on how they interleave.
4. A result counts if it is of the attempt that is open; results of other attempts are ignored.
5. An ignored record leaves the very same object: ``evolve(run, record) is run``.
6. A fold that begins in the middle of the log begins a run with its first RunSnapshotted. A snapshot that does not include the
   last record the fold has seen (a command came between) is ignored; any other replaces what the fold has, for its writer had
   read all of the run, and the fold may have begun with a snapshot of the first kind.
7. A model step whose start names another digest than its prefix has in this fold was sent another conversation: `drift`. The run
   makes no further call, until a person lets it.
8. No clock: times are the records' own broker timestamps. Nothing raises on a record that the log accepted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import assert_never

from runfold.core import conversation, snapshot
from runfold.core.conversation import Message, Turn
from runfold.core.events import (
    DEFAULT_MAX_STEPS,
    DEFAULT_TIMEOUT_MS,
    Command,
    CommandRejected,
    LeaseAcquired,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Reason,
    Record,
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
from runfold.core.limits import replace_limits
from runfold.core.money import add
from runfold.core.replacing import replace
from runfold.core.spending import unheard, wasted

NO_USAGE = Usage()
NO_LIMITS = Limits()
ANSWERED = 100
LAST_MS = 2**63 - 1  # the largest time that a record holds
MENDABLE = frozenset({Reason.MODEL_ACCESS, Reason.PREFIX_DRIFT})  # failures of a call that say nothing against the run


@dataclass(frozen=True)
class ModelStep:
    """The model step that is due or under way."""

    seq: int
    attempt: int = 0  # starts so far
    failures: int = 0  # of them, those that ended in ModelStepFailed, and all those before a person resumed the run
    aborted: int = 0  # starts that their owner aborted to let go of its partition
    overloads: int = 0  # failures since then because the API was overloaded
    mishaps: int = 0  # all others
    open: bool = False  # started, no result
    retry_at: int | None = None  # broker ms
    reserved: int = 0  # output tokens, of the attempt that is open
    reserved_cost: Decimal | None = Decimal(0)  # of these and of the prompt as far as its size was known; None: not known
    wasted: int = 0  # tokens of failed attempts, where known
    wasted_cost: Decimal | None = Decimal(0)


@dataclass(frozen=True)
class Call:
    """One tool call of the current turn."""

    seq: int
    model_seq: int
    id: str
    name: str
    input_json: str
    attempt: int = 0
    forgiven: int = 0  # of the starts, those aborted by an owner that let go, or before a person resumed the run
    open: bool = False
    side_effect: SideEffect = SideEffect.NONE
    repeatable: bool = True
    status: ToolStatus | None = None
    content_json: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the run is to end, decided by an event that is in the log; RunFinished or RunSuspended follows."""

    status: Status
    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """Everything there is to know of a run at one offset."""

    request: RunRequested
    partition: int
    first_offset: int
    requested_at: int  # broker ms, like all times
    limits: Limits = NO_LIMITS  # as requested, or as the last resumption left them
    status: Status = Status.QUEUED
    reason: Reason | None = None
    detail: str = ""
    waiting_tool_use_id: str | None = None  # that a suspended run is about
    started: RunStarted | None = None
    started_at: int | None = None
    finished_at: int | None = None
    messages: tuple[Message, ...] = ()
    digest: str = ""  # of definition and messages
    drift: str = ""  # the digest that the last model step was sent with, where this build rebuilds another one
    step: ModelStep = ModelStep(1)
    calls: tuple[Call, ...] = ()  # of the turn being answered
    next_seq: int = 1
    truncated: int = 0  # answers in a row that were cut by max_tokens and discarded
    usage: Usage = NO_USAGE
    wasted: Usage = NO_USAGE  # of failed attempts, where known
    cost: Decimal | None = Decimal(0)  # None: not known
    wasted_cost: Decimal | None = Decimal(0)
    unsettled: int = 0  # tokens that calls may have used at most whose end is not known, beside what is in usage and wasted
    unsettled_cost: Decimal | None = Decimal(0)
    prompt: int = 0  # tokens that the next prompt has at least: those of the last one, which it begins with
    output: str = ""
    verdict: Verdict | None = None
    inbox: tuple[RunCancelRequested, ...] = ()
    resumes: tuple[RunResumeRequested, ...] = ()  # the inbox's other half
    answered: tuple[str, ...] = ()  # ids of the last ANSWERED resume commands: a repeated one has no effect
    last_offset: int = -1
    last_at: int = 0  # of the last event that changed the run: what others ask of it is no progress
    fold_from: int = 0  # the offset from which a fold knows all of this: of the request, or of the newest snapshot that holds

    @property
    def id(self) -> str:
        return self.request.run_id

    @property
    def deadline(self) -> int:
        """As the start froze it: a later build's default moves no run's deadline."""
        if self.started is not None:
            return self.started.deadline
        timeout = self.request.limits.timeout_ms
        return min(self.requested_at + (DEFAULT_TIMEOUT_MS if timeout is None else timeout), LAST_MS)

    @property
    def max_steps(self) -> int:
        limit = self.limits.max_steps
        return DEFAULT_MAX_STEPS if limit is None else limit

    @property
    def steps(self) -> int:
        """Steps begun so far: the highest seq."""
        return self.next_seq - 1

    @property
    def spent(self) -> int:
        """Tokens that count against the budget: failed attempts are paid for too, where the API said what they took."""
        return self.usage.total + self.wasted.total

    @property
    def spent_at_most(self) -> int:
        """The same, with what was reserved for calls that nobody heard the end of. The open one counts as such."""
        return self.spent + self.unsettled + (self.prompt + self.step.reserved if self.step.open else 0)

    @property
    def cost_at_most(self) -> Decimal | None:
        """US dollars, likewise; None: not known."""
        known = add(add(self.cost, self.wasted_cost), self.unsettled_cost)
        return add(known, self.step.reserved_cost) if self.step.open else known


def fold(records: Iterable[Record]) -> Run | None:
    return reduce(evolve, records, None)


def evolve(run: Run | None, record: Record) -> Run | None:
    """Apply one record of the run. None: there is no such run (yet)."""
    if isinstance(record.event, RunSnapshotted):
        return _snapshotted(run, record.event, record.offset)
    if run is None:
        return _request(record.event, record) if isinstance(record.event, RunRequested) else None
    changed = run if run.status.final else _apply(run, record)
    if changed is run:
        return run
    progress = run.last_at if isinstance(record.event, Command | CommandRejected) else record.timestamp
    return replace(changed, last_offset=record.offset, last_at=progress)


def _apply(run: Run, record: Record) -> Run:
    match record.event:
        case ModelStepStarted() as event:
            return _model_started(run, event)
        case ModelStepCompleted() as event:
            return _model_completed(run, event)
        case ToolStepStarted() as event:
            return _tool_started(run, event)
        case ToolStepFinished() as event:
            return _tool_finished(run, event)
        case ModelStepFailed() as event:
            return _model_failed(run, event)
        case StepAborted() as event:
            return _aborted(run, event)
        case RunStarted() as event:
            return _started(run, event, record.timestamp)
        case RunCancelRequested() as event:
            known = any(command.command_id == event.command_id for command in run.inbox)
            return run if known else replace(run, inbox=(*run.inbox, event))
        case RunResumeRequested() as event:
            known = any(command.command_id == event.command_id for command in run.resumes) or event.command_id in run.answered
            return run if known else replace(run, resumes=(*run.resumes, event))
        case RunSuspended() as event:
            return _suspended(run, event)
        case RunResumed() as event:
            return _resumed(run, event)
        case CommandRejected() as event:
            return _consume(run, event.command_id)
        case RunFinished() as event:
            return _finished(run, event, record.timestamp)
        case RunRequested() | LeaseAcquired() | RunSnapshotted():
            return run
        case _:
            assert_never(record.event)


def _request(event: RunRequested, record: Record) -> Run:
    blank = not event.input.strip()
    return Run(
        request=event,
        limits=event.limits,
        partition=record.partition,
        first_offset=record.offset,
        requested_at=record.timestamp,
        messages=() if blank else (conversation.user_text(event.input),),
        verdict=Verdict(Status.FAILED, Reason.CONFIG, "the input is blank: a run needs text to begin with") if blank else None,
        last_offset=record.offset,
        last_at=record.timestamp,
        fold_from=record.offset,
    )


def _snapshotted(run: Run | None, event: RunSnapshotted, offset: int) -> Run | None:
    if run is not None and (run.status.final or event.last_offset < run.last_offset):
        return run
    try:
        return replace(snapshot.from_text(Run, event.state_json), fold_from=offset)
    except ValueError:  # no owner wrote it
        return run


def _started(run: Run, event: RunStarted, at: int) -> Run:
    if run.started is not None:
        return run
    digest = reduce(conversation.extend_digest, run.messages, event.definition.hash)
    return replace(run, status=Status.RUNNING, started=event, started_at=at, digest=digest)


def _model_started(run: Run, event: ModelStepStarted) -> Run:
    if run.started is None or run.calls or event.seq != run.step.seq or event.attempt <= run.step.attempt:
        return run
    run = unheard(run)
    step = replace(
        run.step,
        attempt=event.attempt,
        open=True,
        retry_at=None,
        reserved=event.reserved_tokens,
        reserved_cost=event.reserved_cost,
    )
    drift = "" if event.prefix_digest == run.digest else event.prefix_digest or "none"
    return replace(run, step=step, next_seq=event.seq + 1, drift=drift)


def _is_open(step: ModelStep, event: ModelStepCompleted | ModelStepFailed | StepAborted) -> bool:
    return step.open and step.seq == event.seq and step.attempt == event.attempt


def _closed(step: ModelStep) -> ModelStep:
    """No attempt of it is open, and nothing is reserved for one."""
    return replace(step, open=False, reserved=0, reserved_cost=Decimal(0))


def _model_failed(run: Run, event: ModelStepFailed) -> Run:
    if not _is_open(run.step, event):
        return run
    overload = event.reason is Reason.OVERLOADED
    run = wasted(run, event)
    step = replace(
        _closed(run.step),
        failures=run.step.failures + 1,
        overloads=run.step.overloads + overload,
        mishaps=run.step.mishaps + (not overload),
        retry_at=event.retry_at,
    )
    final = Status.SUSPENDED if event.reason in MENDABLE else Status.FAILED
    return replace(
        run,
        step=step,
        verdict=Verdict(final, event.reason, _explained(event)) if event.retry_at is None else None,
    )


def _explained(event: ModelStepFailed) -> str:
    """The message, with the status and type that the API gave it: ``400 invalid_request_error: …``."""
    if event.http_status is None:
        return event.message
    return f"{event.http_status} {event.error_type or ''}".rstrip() + f": {event.message}"


def _model_completed(run: Run, event: ModelStepCompleted) -> Run:
    if not _is_open(run.step, event):
        return run
    paid = replace(
        run,
        usage=run.usage + event.usage,
        cost=add(run.cost, event.cost),
        prompt=event.usage.total - event.usage.output_tokens,
        step=ModelStep(event.seq + 1),
    )
    return _continue(paid, event)


def _continue(run: Run, event: ModelStepCompleted) -> Run:
    """What each stop_reason means for the run. An unknown one fails closed."""
    match event.stop_reason:
        case "tool_use" | "end_turn" | "stop_sequence" | "pause_turn":
            turn = conversation.read_turn(event.content_json)
            problem = turn.problem or _contradiction(turn, event.stop_reason)
            return _ends(run, Status.FAILED, Reason.INVALID_MODEL_RESPONSE, problem) if problem else _take(run, turn, event)
        case "max_tokens":
            return replace(run, truncated=run.truncated + 1)  # paid and discarded: its tool inputs may be cut
        case "refusal":
            return _ends(run, Status.FAILED, Reason.REFUSAL, f"the model refused: {event.stop_details_json or ''}"[:500])
        case "model_context_window_exceeded":
            return _ends(run, Status.FAILED, Reason.CONTEXT_WINDOW, "the conversation no longer fits the model's context window")
        case unknown:
            detail = f"stop_reason {unknown[:100]!r} is not known to this build"
            return _ends(run, Status.SUSPENDED, Reason.UNKNOWN_STOP_REASON, detail)


def _contradiction(turn: Turn, stop_reason: str) -> str | None:
    """Why an answer cannot mean what its stop_reason says: to go on would be a guess, or a request that the API refuses."""
    if stop_reason == "tool_use":
        return None if turn.tool_uses else "stop_reason tool_use without a tool_use block"
    if turn.tool_uses:
        return f"stop_reason {stop_reason} with a tool_use block: the call was asked for, and nobody waits for its result"
    if stop_reason == "pause_turn" and turn.rendered is None:
        return "stop_reason pause_turn without content to continue"
    return None


def _take(run: Run, turn: Turn, event: ModelStepCompleted) -> Run:
    """Append an answer to the conversation, and do what it asks for."""
    run = _with_answer(run, turn)
    if event.stop_reason == "pause_turn":
        return run
    return _ask_tools(run, event, turn) if turn.tool_uses else _ends(run, Status.SUCCEEDED, Reason.FINAL_ANSWER)


def _with_answer(run: Run, turn: Turn) -> Run:
    output = turn.text if turn.text.strip() else run.output
    if turn.rendered is None:
        return replace(run, output=output, truncated=0)
    digest = conversation.extend_digest(run.digest, turn.rendered)
    return replace(run, output=output, truncated=0, messages=(*run.messages, turn.rendered), digest=digest)


def _ask_tools(run: Run, event: ModelStepCompleted, turn: Turn) -> Run:
    calls = tuple(
        Call(seq=event.seq + n, model_seq=event.seq, id=use.id, name=use.name, input_json=use.input_json)
        for n, use in enumerate(turn.tool_uses, 1)
    )
    after = event.seq + len(calls) + 1
    return replace(run, calls=calls, step=ModelStep(after))


def _ends(run: Run, status: Status, reason: Reason, detail: str = "") -> Run:
    return replace(run, verdict=Verdict(status, reason, detail))


def _tool_started(run: Run, event: ToolStepStarted) -> Run:
    call = _call(run, event)
    if call is None or event.attempt <= call.attempt:
        return run
    begun = replace(call, attempt=event.attempt, open=True, side_effect=event.side_effect, repeatable=event.repeatable)
    return replace(run, calls=_put(run.calls, begun), next_seq=max(run.next_seq, call.seq + 1))


def _tool_finished(run: Run, event: ToolStepFinished) -> Run:
    call = _call(run, event)
    if call is None or not call.open or event.attempt != call.attempt:
        return run
    ended = replace(call, open=False, status=event.status, content_json=event.content_json)
    calls = _put(run.calls, ended)
    if any(call.status is None for call in calls):
        return replace(run, calls=calls)
    answer = conversation.tool_results([(call.id, call.content_json, call.status is not ToolStatus.DONE) for call in calls])
    digest = conversation.extend_digest(run.digest, answer)
    return replace(run, calls=(), messages=(*run.messages, answer), digest=digest)


def _aborted(run: Run, event: StepAborted) -> Run:
    if _is_open(run.step, event):
        run = unheard(run)
        return replace(run, step=replace(_closed(run.step), aborted=run.step.aborted + 1))
    for call in run.calls:
        if call.open and call.repeatable and (call.seq, call.attempt) == (event.seq, event.attempt):
            return replace(run, calls=_put(run.calls, replace(call, open=False, forgiven=call.forgiven + 1)))
    return run


def _call(run: Run, event: ToolStepStarted | ToolStepFinished) -> Call | None:
    """The unfinished call of the current turn that an event is about."""
    for call in run.calls:
        if call.id == event.tool_use_id and call.model_seq == event.model_seq:
            return call if call.status is None else None
    return None


def _put(calls: tuple[Call, ...], changed: Call) -> tuple[Call, ...]:
    return tuple(changed if call.seq == changed.seq else call for call in calls)


def _suspended(run: Run, event: RunSuspended) -> Run:
    known = run.status is Status.SUSPENDED and (run.reason, run.waiting_tool_use_id) == (event.reason, event.tool_use_id)
    if known and run.verdict is None:
        return run
    return replace(
        run,
        status=Status.SUSPENDED,
        reason=event.reason,
        detail=event.detail,
        waiting_tool_use_id=event.tool_use_id,
        verdict=run.verdict if event.reason is Reason.UNREADABLE_RECORD else None,  # it is followed when the run goes on
    )


def _resumed(run: Run, event: RunResumed) -> Run:
    """The run goes on where it stood: the step that stopped it counts as not begun, and its starts as forgiven."""
    if run.status is not Status.SUSPENDED:
        return run
    asked = run.waiting_tool_use_id
    return replace(
        _consume(unheard(run), event.command_id),
        status=Status.RUNNING if run.started else Status.QUEUED,
        reason=None,
        detail="",
        waiting_tool_use_id=None,
        limits=replace_limits(run.limits, event),
        drift="" if run.reason is Reason.PREFIX_DRIFT else run.drift,
        step=replace(_closed(run.step), failures=run.step.attempt, aborted=0, overloads=0, mishaps=0, retry_at=None),
        calls=tuple(replace(call, open=False, forgiven=call.attempt) if call.id == asked else call for call in run.calls),
    )


def _consume(run: Run, command_id: str) -> Run:
    left = tuple(command for command in run.resumes if command.command_id != command_id)
    if len(left) == len(run.resumes):
        return run
    return replace(run, resumes=left, answered=(*run.answered, command_id)[-ANSWERED:])


def _finished(run: Run, event: RunFinished, at: int) -> Run:
    if not event.status.final:
        return run  # it says that the run ended, and not how
    run = unheard(run)  # a call that the end cut off
    return replace(
        run,
        status=event.status,
        reason=event.reason,
        detail=event.detail,
        output=event.output,
        waiting_tool_use_id=None,
        finished_at=at,
        verdict=None,
        step=_closed(run.step),
        inbox=tuple(command for command in run.inbox if command.command_id != event.command_id),
    )
