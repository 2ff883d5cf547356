"""What a run does next. Pure: state and time in, decisions out.

``busy`` names the attempts, as (seq, attempt), that the asking worker has in hand: being started, running, or ended and not yet
in the log. An attempt that is open in the log and not in hand died with its worker, and is made again or left to a person.
Other decisions are repeated until their event is in the run.
"""

from collections.abc import Collection

from runfold.core import guards
from runfold.core.decisions import Begin, CallModel, Decision, Finish, Reject, Resume, RunTools, Suspend, WaitUntil
from runfold.core.events import Reason, Rejection, RunResumeRequested, Status
from runfold.core.reserving import Reservation, Tariff, reserve
from runfold.core.run import Call, ModelStep, Run

MAX_STARTS = 4  # starts of one step that ended without a result: then it is taken for what kills the workers
MAX_TRUNCATED = 3  # answers in a row cut by max_tokens, each asked for with twice the room of the one before
LARGEST_ANSWER = 128_000  # tokens; no model answers with more
OUTCOME_UNKNOWN_WAYS = "`runfold resume` calls it again, `runfold quarantine fail` gives the run up"  # for whoever has found out

Attempt = tuple[int, int]


def decide(run: Run, now: int, busy: Collection[Attempt] = (), since: int = 0, tariff: Tariff | None = None) -> list[Decision]:
    """What to do now, in order. The last is a `WaitUntil` unless the run ends. Times are broker ms.

    ``tariff`` is that of the run's model now; None: it has no known price, and a run with a cost ceiling makes no call.
    """
    if run.status.final:
        return []
    tripped = guards.ended(run, now, since)
    actions: list[Decision] = _actions(run, now, busy, tariff) if tripped is None else [tripped]
    if any(isinstance(action, Finish) for action in actions):
        return actions
    return [*actions, WaitUntil(_wake_at(run, now, since))]


def _actions(run: Run, now: int, busy: Collection[Attempt], tariff: Tariff | None) -> list[Decision]:
    if run.resumes:
        return [_answer(run.resumes[0], run)]
    if run.status is Status.SUSPENDED and run.reason is not Reason.OUTCOME_UNKNOWN:
        return []
    if run.started is None:
        return [Begin()]
    return _tools(run, busy) if run.calls else _model(run, now, busy, tariff)


def _answer(command: RunResumeRequested, run: Run) -> Resume | Reject:
    if run.status is Status.SUSPENDED:
        return Resume(command)
    return Reject(command.command_id, Rejection.NOT_SUSPENDED)


def _wake_at(run: Run, now: int, since: int) -> int:
    times = [run.deadline]
    if run.step.retry_at is not None and run.step.retry_at > now:
        times.append(run.step.retry_at)
    if (limit := guards.no_progress_at(run, since)) is not None:
        times.append(limit)
    return min(times)


def _model(run: Run, now: int, busy: Collection[Attempt], tariff: Tariff | None) -> list[Decision]:
    step = run.step
    if _in_hand(step.seq, step.attempt, step.open, busy):
        return []
    if step.retry_at is not None and now < step.retry_at:
        return []
    if _deaths(step) >= MAX_STARTS:
        return [Suspend(Reason.CRASH_LOOP, f"model step {step.seq} was started {step.attempt} times and its worker died")]
    tripped = _drifted(run) or _hopeless(run) or guards.exhausted(run, step.seq)
    return [tripped or _call(run, tariff)]


def _call(run: Run, tariff: Tariff | None) -> CallModel | Finish | Suspend:
    reserved = reserve(run, _room(run, run.truncated), tariff)
    if not isinstance(reserved, Reservation):
        return reserved
    return _too_little(run, reserved.tokens) or CallModel(run.step.seq, run.step.attempt + 1, reserved.tokens, reserved.cost)


def _drifted(run: Run) -> Suspend | None:
    """Whether the next request would begin otherwise than the last one did, which the API refuses."""
    if not run.drift:
        return None
    detail = f"this version rebuilds the conversation otherwise than it was sent before, with digest {run.drift[:12]}"
    return Suspend(Reason.PREFIX_DRIFT, detail)


def has_one_start_left(step: ModelStep | Call) -> bool:
    """Whether the next death would suspend the run. What was under way beside a step that kills has died as often as that one: to
    tell them apart, a worker makes such starts one after the other, some time apart."""
    return _deaths(step) >= MAX_STARTS - 1


def _deaths(step: ModelStep | Call) -> int:
    """Starts without a result, since a person last resumed the run."""
    return step.attempt - (step.failures + step.aborted if isinstance(step, ModelStep) else step.forgiven)


def _in_hand(seq: int, attempt: int, is_open: bool, busy: Collection[Attempt]) -> bool:
    """Whether the last attempt of a step, or the one after it, is in the worker's hands."""
    return (is_open and (seq, attempt) in busy) or (seq, attempt + 1) in busy


def _hopeless(run: Run) -> Finish | None:
    """Why no further answer would be of use."""
    asked, cut = _max_tokens(run), run.truncated
    if not 1 <= asked <= LARGEST_ANSWER:
        return Finish(Status.FAILED, Reason.CONFIG, f"max_tokens must be 1 to {LARGEST_ANSWER}, the definition has {asked}")
    if cut >= MAX_TRUNCATED or (cut and _room(run, cut) <= _room(run, cut - 1)):
        return Finish(Status.FAILED, Reason.MAX_TOKENS, f"{cut} answers in a row were cut off by max_tokens")
    return None


def _too_little(run: Run, left: int) -> Finish | Suspend | None:
    """Whether the budget leaves the next answer no more room than the last one had, which was cut."""
    if not run.truncated or left > (had := _room(run, run.truncated - 1)):
        return None
    return guards.breach(run, f"an answer was cut off at {had} tokens and the budget leaves {left} for the next")


def _max_tokens(run: Run) -> int:
    assert run.started is not None
    return run.started.definition.max_tokens


def _room(run: Run, truncated: int) -> int:
    return min(_max_tokens(run) << truncated, LARGEST_ANSWER)


def _tools(run: Run, busy: Collection[Attempt]) -> list[Decision]:
    due = [call for call in run.calls if call.status is None and not _in_hand(call.seq, call.attempt, call.open, busy)]
    stuck = [decision for call in due if (decision := _stuck(call)) is not None]
    ready = tuple(call for call in due if _stuck(call) is None)
    fresh = [call for call in ready if call.attempt == 0]
    if fresh and (tripped := guards.exhausted(run, run.calls[-1].seq)) is not None:
        return [tripped]
    actions: list[Decision] = [RunTools(ready)] if ready else []
    if run.status is not Status.SUSPENDED and stuck:
        actions.append(stuck[0])
    return actions


def _stuck(call: Call) -> Suspend | None:
    """Why a call that died with its worker is not made again."""
    if call.open and not call.repeatable:
        named = f"tool {call.name[:100]!r} (tool_use {call.id[:100]})"
        detail = f"{named} was started and its outcome is not known; it can't be repeated. {OUTCOME_UNKNOWN_WAYS}"
        return Suspend(Reason.OUTCOME_UNKNOWN, detail[:500], call.id)
    if call.open and _deaths(call) >= MAX_STARTS:
        detail = f"tool {call.name!r} (tool_use {call.id}) was started {call.attempt} times and its worker died"
        return Suspend(Reason.CRASH_LOOP, detail[:500], call.id)
    return None
