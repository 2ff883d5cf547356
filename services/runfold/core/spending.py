"""What calls cost that ended without an answer: a part of `runfold.core.run`.

Where the API said what a failed attempt used, it is wasted. What it may have used beyond that, and all that was reserved for a
call whose end nobody heard, is *unsettled*: at most that has been spent, too.
"""

from typing import TYPE_CHECKING

from runfold.core.events import ModelStepFailed, Reason
from runfold.core.money import add
from runfold.core.replacing import replace

if TYPE_CHECKING:
    from runfold.core.run import Run


def unheard(run: "Run") -> "Run":
    """The attempt that is open died with its worker, or was cut off by the run's end, and may have been paid for."""
    return _unsettled(run, run.prompt + run.step.reserved) if run.step.open else run


def _unsettled(run: "Run", tokens: int) -> "Run":
    cost = add(run.unsettled_cost, run.step.reserved_cost)
    return replace(run, unsettled=run.unsettled + tokens, unsettled_cost=cost)


def wasted(run: "Run", event: ModelStepFailed) -> "Run":
    """What a failed attempt cost, where the API said so; at most what it may have cost, where the API had begun to work on it."""
    if event.usage is None:
        return unheard(run) if event.reason is Reason.MODEL_TIMEOUT else run
    run = _unsettled(run, max(run.step.reserved - event.usage.output_tokens, 0))
    tokens, cost = run.step.wasted + event.usage.total, add(run.step.wasted_cost, event.cost)
    return replace(
        run,
        wasted=run.wasted + event.usage,
        wasted_cost=add(run.wasted_cost, event.cost),
        step=replace(run.step, wasted=tokens, wasted_cost=cost),
    )
