"""What a model call may use at most: reserved before it is made, settled by what the API reports of it.

How large the next prompt is, only the call tells. Known is that it begins with the last one (`Run.prompt`): so much is set aside,
at the highest price that a token of it can have, and ``max_tokens`` is what is left then. So no answer overshoots a budget; what
is new in a prompt can: the first input, the answer before, tool results.
"""

import json
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from runfold.core import guards
from runfold.core.decisions import Finish, Suspend
from runfold.core.money import EXACT
from runfold.core.run import Run

LEAST_ANSWER = 16  # tokens; an answer with less room says nothing and pays for its prompt


@dataclass(frozen=True, slots=True)
class Tariff:
    """The most that one token costs now, in US dollars: of a prompt, and of an answer."""

    input: Decimal
    output: Decimal

    def cost(self, prompt: int, answer: int) -> Decimal:
        """US dollars, of so many tokens of each."""
        return EXACT.add(EXACT.multiply(self.input, Decimal(prompt)), EXACT.multiply(self.output, Decimal(answer)))


@dataclass(frozen=True, slots=True)
class Reservation:
    """``tokens`` is max_tokens of the request. ``cost``: of these and of the prompt as far as known; None: no known price."""

    tokens: int
    cost: Decimal | None


def reserve(run: Run, room: int, tariff: Tariff | None) -> Reservation | Finish | Suspend:
    """Up to ``room`` output tokens for the next call, or why there is not even room for the least answer."""
    limits, least = run.limits, min(_least(run), room)
    if limits.cost_ceiling is not None and tariff is None:
        return guards.breach(run, "the run has a cost ceiling and its model has no known price now")
    tokens = room
    if limits.token_budget is not None:
        tokens = min(tokens, limits.token_budget - run.spent_at_most - run.prompt)
        if tokens < least:
            return guards.breach(run, f"{guards.tokens_spent(run)}; the next call takes at least {run.prompt + least}")
    if limits.cost_ceiling is not None and tariff is not None:
        tokens = min(tokens, _affordable(run, limits.cost_ceiling, tariff, room))
        if tokens < least:
            needed = tariff.cost(run.prompt, least).normalize(EXACT)
            return guards.breach(run, f"{guards.money_spent(run)}; the next call may take {needed:f} at least")
    return Reservation(tokens, None if tariff is None else tariff.cost(run.prompt, tokens))


def _least(run: Run) -> int:
    """Output tokens that a request must allow: `LEAST_ANSWER`, and more than it allows for thinking, or the API refuses it."""
    return LEAST_ANSWER if run.started is None else max(LEAST_ANSWER, _thinking(run.started.definition.options_json) + 1)


@lru_cache(maxsize=1000)
def _thinking(options_json: str) -> int:
    try:
        return max(0, int(json.loads(options_json)["thinking"]["budget_tokens"]))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):  # none is set, or no worker of ours wrote it
        return 0


def _affordable(run: Run, ceiling: Decimal, tariff: Tariff, room: int) -> int:
    """Output tokens, up to ``room``, that the ceiling leaves after the prompt; below zero: not even the prompt is."""
    assert run.cost_at_most is not None, "a run with a ceiling and an unknown cost is stopped before"
    left = EXACT.subtract(EXACT.subtract(ceiling, run.cost_at_most), tariff.cost(run.prompt, 0))
    if left < 0:
        return -1
    return room if EXACT.multiply(tariff.output, Decimal(room)) <= left else int(EXACT.divide_int(left, tariff.output))
