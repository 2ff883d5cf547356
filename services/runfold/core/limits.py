"""What a run may use: as its request has it, and as those who resume it change it."""

from runfold.core.events import Limits, RunResumed, RunResumeRequested


def replace_limits(limits: Limits, change: RunResumed | RunResumeRequested) -> Limits:
    """The limits with those that ``change`` gives."""
    return Limits(
        token_budget=limits.token_budget if change.token_budget is None else change.token_budget,
        cost_ceiling=limits.cost_ceiling if change.cost_ceiling is None else change.cost_ceiling,
        timeout_ms=limits.timeout_ms,
        max_steps=limits.max_steps if change.max_steps is None else change.max_steps,
        progress_timeout_ms=limits.progress_timeout_ms,
        on_budget=limits.on_budget,
    )
