"""Whatever a run does, and whoever dies under it: no output token goes beyond its limits.

Each seed is a story: limits, prices, and calls that answer, are cut, break off, time out, are refused, or die with their worker.
The API bills every one of them as it may: all of a prompt at any price up to the highest, and as much output as it was allowed.
What the limits cannot hold is what is new in a prompt, of calls whose end nobody heard and of the last one; nothing else.
"""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from runfold.core.decisions import CallModel, Finish, RunTools, Suspend
from runfold.core.events import OnBudget, Reason, Usage
from runfold.core.reserving import LEAST_ANSWER, Tariff
from runfold.testing.given import History, given, text, tool_use

STORIES = 400
CALLS = 40
OUTCOMES = ("answers", "answers", "answers", "cut", "dies", "breaks", "times out", "refused")
CENT = Decimal("0.01")


@dataclass
class Bill:
    """What the API charges, and how much of it no reservation could know."""

    tokens: int = 0
    cost: Decimal = Decimal(0)
    unknown_tokens: int = 0
    unknown_cost: Decimal = Decimal(0)

    def within(self, budget: int | None, ceiling: Decimal | None, new: int, new_cost: Decimal) -> None:
        """``new`` is what the last call brought."""
        if budget is not None:
            assert self.tokens - self.unknown_tokens - new <= budget
        if ceiling is not None:
            assert self.cost - self.unknown_cost - new_cost <= ceiling


@dataclass
class Story:
    chance: Random
    history: History = field(init=False)
    tariff: Tariff = field(init=False)
    bill: Bill = field(default_factory=Bill)
    prompt: int = 0  # tokens of the last one that was answered: the next begins with it
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        chance = self.chance
        limits: dict[str, Any] = {"on_budget": chance.choice(list(OnBudget)), "max_steps": 10 * CALLS}
        kind = chance.choice(["tokens", "money", "both"])
        if kind != "money":
            limits["token_budget"] = chance.randint(1, 30_000)
        if kind != "tokens":
            limits["cost_ceiling"] = CENT * chance.randint(1, 30)
        self.tariff = Tariff(Decimal(chance.randint(0, 10)).scaleb(-6), Decimal(chance.randint(0, 40)).scaleb(-6))
        self.history = given(**limits).started(max_tokens=chance.choice([1, 20, 300, 4_000]))

    def play(self) -> str:
        """How it ended."""
        for _ in range(CALLS):
            [first, *_] = self.history.decisions(tariff=self.tariff)
            if isinstance(first, CallModel):
                self.call(first)
            elif isinstance(first, RunTools):
                self.history = self.history.finished_tool(first.calls[0].id)
            else:
                return str(first.reason) if isinstance(first, Suspend | Finish) else "waits"
        return "goes on"

    def call(self, decision: CallModel) -> None:
        chance, limits = self.chance, self.history.run.limits
        assert decision.max_tokens >= min(LEAST_ANSWER, self.history.run.started.definition.max_tokens)  # type: ignore[union-attr]
        outcome = chance.choice(OUTCOMES)
        known, new = self.prompt, chance.choice([0, 0, chance.randint(0, 2_000)])
        said = decision.max_tokens if outcome in ("cut", "dies") else chance.randint(0, decision.max_tokens)
        rate = self.tariff.input * chance.randint(0, 10) / 10
        begun = self.history.started_model(decision.max_tokens, reserved_cost=decision.max_cost)
        if outcome != "refused":
            self.bill.tokens += known + new + said
            self.bill.cost += rate * (known + new) + self.tariff.output * said
        self.history = self._end(begun, outcome, Usage(input_tokens=known + new, output_tokens=said), rate)
        if outcome in ("dies", "times out"):
            self.bill.unknown_tokens += new
            self.bill.unknown_cost += rate * new
        if outcome in ("answers", "cut"):
            self.prompt = known + new
        self.seen[outcome] += 1
        self.bill.within(limits.token_budget, limits.cost_ceiling, new, rate * new)

    def _end(self, begun: History, outcome: str, usage: Usage, rate: Decimal) -> History:
        cost = rate * usage.input_tokens + self.tariff.output * usage.output_tokens
        match outcome:
            case "answers":
                return begun.answers(tool_use(f"t{len(begun.records)}"), usage=usage, cost=cost)
            case "cut":
                return begun.answers(text("half"), stop_reason="max_tokens", usage=usage, cost=cost)
            case "dies":
                return begun.taken_over()
            case "breaks":  # the prompt was reported, and the output up to somewhere
                heard = self.chance.randint(0, usage.output_tokens)
                partly = Usage(input_tokens=usage.input_tokens, output_tokens=heard)
                paid = rate * usage.input_tokens + self.tariff.output * heard
                return begun.failed_model(Reason.CONNECTION, retry_in=0, usage=partly, cost=paid).after(1)
            case "times out":
                return begun.failed_model(Reason.MODEL_TIMEOUT, retry_in=0).after(1)
            case _:
                return begun.failed_model(Reason.OVERLOADED, retry_in=0).after(1)


@pytest.mark.parametrize("seed", range(STORIES))
def test_no_output_goes_beyond_what_was_reserved(seed: int) -> None:
    print(f"seed {seed}")
    Story(Random(seed)).play()


def test_the_stories_are_about_something() -> None:
    """Most end at a limit, and every outcome comes before it."""
    ends, seen = Counter[str](), Counter[str]()
    for seed in range(STORIES):
        story = Story(Random(seed))
        ends[story.play()] += 1
        seen += story.seen
    print(ends, seen)
    assert ends[Reason.BUDGET] > STORIES / 2
    assert all(seen[outcome] > STORIES / 20 for outcome in OUTCOMES)
