"""What stops a run from taking another step: checked before each one, derived from the log alone, so no restart resets any."""

from decimal import Decimal

from runfold.core.decisions import Finish, Suspend
from runfold.core.events import OnBudget, Reason, Status
from runfold.core.money import EXACT, add
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
    """When the progress timeout runs out, in broker ms. Not counted: time without an owner, time suspended, and the pause before
    the next attempt of a failed model step."""
    timeout = run.limits.progress_timeout_ms
    if timeout is None or run.status is not Status.RUNNING:
        return None
    return max(run.last_at, since, run.step.retry_at or 0) + timeout


def exhausted(run: Run, next_seq: int) -> Finish | Suspend | None:
    """Guards before a further step: step cap and budgets. A final answer that is already there is not withheld by them."""
    if next_seq > run.max_steps:
        return Finish(Status.FAILED, Reason.STEP_CAP, f"the run may take {run.max_steps} steps and asked for more")
    budget, ceiling, cost = run.limits.token_budget, run.limits.cost_ceiling, run.cost_at_most
    if budget is not None and run.spent_at_most >= budget:
        return breach(run, tokens_spent(run))
    if ceiling is not None and cost is None:
        return breach(run, "the run has a cost ceiling and its cost is not known: it used something without a known price")
    if ceiling is not None and cost is not None and cost >= ceiling:
        return breach(run, money_spent(run))
    return None


def breach(run: Run, detail: str) -> Finish | Suspend:
    """What a budget that would not hold does to a run: what its requester chose."""
    if run.limits.on_budget is OnBudget.FAIL:
        return Finish(Status.FAILED, Reason.BUDGET, detail)
    return Suspend(Reason.BUDGET, detail)


def tokens_spent(run: Run) -> str:
    unheard = run.spent_at_most - run.spent
    more = f", and up to {unheard} by calls whose end is not known" if unheard else ""
    return f"{run.spent} of {run.limits.token_budget} tokens are spent{more}"


def money_spent(run: Run) -> str:
    """Of a run with a ceiling and a known cost."""
    known, most, ceiling = add(run.cost, run.wasted_cost), run.cost_at_most, run.limits.cost_ceiling
    assert known is not None
    assert most is not None
    assert ceiling is not None
    more = f", and up to {_usd(EXACT.subtract(most, known))} by calls whose end is not known" if most > known else ""
    return f"{_usd(known)} of {_usd(ceiling)} USD are spent{more}"


def _usd(amount: Decimal) -> str:
    """Without the zeros that the log's fixed scale adds."""
    return f"{amount.normalize(EXACT):f}"
