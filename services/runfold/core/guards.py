"""What stops a run from taking another step: checked before each one, derived from the log alone, so no restart resets any."""

from decimal import Decimal

from runfold.core.decisions import Finish, Suspend
from runfold.core.events import Reason, Status
from runfold.core.run import Run


def ended(run: Run, now: int, since: int) -> Finish | Suspend | None:
    """Guards that hold whatever the run is doing. ``now`` and ``since`` (when its owner took over) are broker ms."""
    if run.inbox:
        command = run.inbox[0]
        return Finish(Status.CANCELLED, Reason.CANCEL, command.detail, command_id=command.command_id)
    if run.verdict is not None and run.status is not Status.SUSPENDED:
        return _follow(run)
    if now >= run.deadline:
        return Finish(Status.TIMED_OUT, Reason.DEADLINE, "the run's deadline passed")
    if (limit := no_progress_at(run, since)) is not None and now >= limit:
        return Finish(Status.TIMED_OUT, Reason.NO_PROGRESS, "no step began or ended within the progress timeout")
    return None


def _follow(run: Run) -> Finish | Suspend | None:
    verdict = run.verdict
    assert verdict is not None
    if verdict.status is Status.SUSPENDED:
        return Suspend(verdict.reason, verdict.detail)
    return Finish(verdict.status, verdict.reason, verdict.detail)


def no_progress_at(run: Run, since: int) -> int | None:
    """When the progress timeout runs out, in broker ms: time without an owner and time suspended are not counted."""
    timeout = run.limits.progress_timeout_ms
    if timeout is None or run.status is not Status.RUNNING:
        return None
    return max(run.last_at, since) + timeout


def exhausted(run: Run, next_seq: int) -> Finish | Suspend | None:
    """Guards before a further step: step cap and budgets. A final answer that is already there is not withheld by them."""
    if next_seq > run.max_steps:
        return Finish(Status.FAILED, Reason.STEP_CAP, f"the run may take {run.max_steps} steps and asked for more")
    budget, ceiling = run.limits.token_budget, run.limits.cost_ceiling
    if budget is not None and run.spent >= budget:
        return Suspend(Reason.BUDGET, f"{run.spent} of {budget} tokens are spent")
    if ceiling is not None and run.cost is None:
        return Suspend(Reason.BUDGET, "the run has a cost ceiling and its cost is not known: a model without a price answered")
    if ceiling is not None and run.cost is not None and run.cost >= ceiling:
        return Suspend(Reason.BUDGET, f"{_usd(run.cost)} of {_usd(ceiling)} USD are spent")
    return None


def _usd(amount: Decimal) -> str:
    """Without the zeros that the log's fixed scale adds."""
    return f"{amount.normalize():f}"
