"""What is reserved before a call, and what counts of calls that nobody heard the end of."""

from decimal import Decimal
from typing import Any

import pytest

from runfold.core.decisions import CallModel, Decision, Finish, Suspend
from runfold.core.events import OnBudget, Reason, RunResumed, Status, Usage
from runfold.core.reserving import LEAST_ANSWER, Tariff
from runfold.core.run import fold
from runfold.testing.given import History, given, text, tool_use

TARIFF = Tariff(input=Decimal("0.000005"), output=Decimal("0.000020"))  # 1,000 tokens of output: 2 cents


def first(history: History, tariff: Tariff | None = TARIFF) -> Decision:
    return history.decisions(tariff=tariff)[0]


def stopped(history: History, tariff: Tariff | None = TARIFF) -> str:
    """Why there is no further call."""
    decision = first(history, tariff)
    assert isinstance(decision, Suspend)
    assert decision.reason is Reason.BUDGET
    return decision.detail


def at(ceiling: str, **limits: Any) -> History:
    return given(cost_ceiling=Decimal(ceiling), **limits).started()


# ---- money


def test_max_tokens_is_cut_to_what_the_ceiling_leaves() -> None:
    assert first(at("0.02")) == CallModel(1, 1, 1_000, Decimal("0.02"))
    assert first(at("0.019999")) == CallModel(1, 1, 999, Decimal("0.01998"))
    assert first(at("1")) == CallModel(1, 1, 4096, Decimal("0.08192"))


def test_the_known_part_of_the_prompt_is_allowed_for_at_its_highest_price() -> None:
    """The next prompt begins with the last one, and the cache may have forgotten it."""
    usage = Usage(input_tokens=100, cache_read_tokens=1_900, output_tokens=50)
    history = at("0.05").answers(tool_use("a"), usage=usage, cost=Decimal("0.01")).finished_tool("a")
    assert first(history) == CallModel(3, 1, 1_500, Decimal("0.04")), "0.04 left, 0.01 for 2,000 tokens of prompt"


def test_the_smaller_of_both_limits_holds() -> None:
    assert first(at("0.02", token_budget=500)) == CallModel(1, 1, 500, Decimal("0.01"))
    assert first(at("0.02", token_budget=5_000)) == CallModel(1, 1, 1_000, Decimal("0.02"))


def test_output_without_a_price_is_not_limited_by_money() -> None:
    free = Tariff(Decimal(0), Decimal(0))
    assert first(at("0.01"), free) == CallModel(1, 1, 4096, Decimal(0))


def test_a_call_is_not_made_for_less_than_the_least_answer() -> None:
    assert first(at("0.00032")) == CallModel(1, 1, LEAST_ANSWER, Decimal("0.00032"))
    assert stopped(at("0.00031")) == "0 of 0.00031 USD are spent; the next call may take 0.00032 at least"
    tokens = given(token_budget=LEAST_ANSWER - 1).started()
    assert stopped(tokens) == "0 of 15 tokens are spent; the next call takes at least 16"


def test_an_agent_may_ask_for_less_than_the_least_answer() -> None:
    assert first(given(token_budget=5).started(max_tokens=3)) == CallModel(1, 1, 3, Decimal("0.00006"))


def test_b08_a_ceiling_without_a_price_makes_no_call() -> None:
    assert "no known price" in stopped(at("1"), None)
    assert first(given().started(), None) == CallModel(1, 1, 4096, None)


# ---- calls that nobody heard the end of


def test_a_call_that_died_with_its_worker_counts_as_reserved() -> None:
    history = given(token_budget=1_000).started().started_model(600).taken_over()
    assert first(history) == CallModel(1, 2, 400, Decimal("0.008"))
    again = history.started_model(400).taken_over()
    assert again.run.spent == 0
    assert stopped(again) == "0 of 1000 tokens are spent, and up to 1000 by calls whose end is not known"


def test_so_does_its_price() -> None:
    history = at("0.02").started_model(600, reserved_cost=Decimal("0.012")).taken_over()
    assert first(history) == CallModel(1, 2, 400, Decimal("0.008"))
    assert history.run.cost == 0, "what is known holds no guess"
    again = history.started_model(400, reserved_cost=Decimal("0.008")).taken_over()
    assert stopped(again) == "0 of 0.02 USD are spent, and up to 0.02 by calls whose end is not known"


def test_a_lost_call_of_unknown_price_is_not_below_a_ceiling() -> None:
    assert "not known" in stopped(at("100").started_model(600, reserved_cost=None).taken_over())


def test_an_answer_with_less_room_than_thinking_takes_is_not_asked_for() -> None:
    """The API wants max_tokens above budget_tokens: a request that the budget cut below would end the run."""
    options = '{"thinking":{"type":"enabled","budget_tokens":500}}'
    assert first(given(token_budget=501).started(options_json=options)) == CallModel(1, 1, 501, Decimal("0.01002"))
    assert "takes at least 501" in stopped(given(token_budget=500).started(options_json=options))


def test_an_answer_takes_the_place_of_its_reservation() -> None:
    history = given(token_budget=1_000).started().started_model(1_000).answers(tool_use("a"), input_tokens=10, output_tokens=20)
    assert (history.run.spent_at_most, history.run.unsettled) == (30, 0)


@pytest.mark.parametrize(
    ("reason", "usage", "unsettled"),
    [
        (Reason.OVERLOADED, None, 0),
        (Reason.CONNECTION, None, 0),  # no answer began
        (Reason.MODEL_TIMEOUT, None, 600),  # the API may have been at work
        (Reason.CONNECTION, Usage(input_tokens=70, output_tokens=100), 500),  # of the output, the rest
        (Reason.CONNECTION, Usage(input_tokens=70, output_tokens=900), 0),
    ],
)
def test_of_a_failed_call_counts_what_was_reported_and_what_was_not(reason: Reason, usage: Usage | None, unsettled: int) -> None:
    run = given().started().started_model(600).failed_model(reason, retry_in=0, usage=usage, cost=Decimal("0.001")).run
    assert (run.unsettled, run.spent) == (unsettled, usage.total if usage else 0)
    assert run.spent_at_most == run.spent + unsettled
    assert run.step.wasted == (usage.total if usage else 0)


def test_waste_counts_against_the_ceiling_and_is_no_answers_cost() -> None:
    usage = Usage(input_tokens=2_000)
    history = at("0.05").started_model(50, reserved_cost=Decimal("0.001"))
    history = history.failed_model(Reason.CONNECTION, retry_in=0, usage=usage, cost=Decimal("0.01"))
    assert history.run.cost == 0
    assert (history.run.wasted_cost, history.run.cost_at_most) == (Decimal("0.01"), Decimal("0.011"))
    assert "not known" in stopped(at("9").failed_model(Reason.CONNECTION, retry_in=0, usage=usage, cost=None).after(1))


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.TIMED_OUT])
def test_a_call_that_the_end_of_its_run_cut_off_may_have_been_paid_for(status: Status) -> None:
    run = given().started().started_model(600, reserved_cost=Decimal("0.012")).finished(status, Reason.CANCEL).run
    assert (run.spent, run.unsettled, run.unsettled_cost, run.spent_at_most) == (0, 600, Decimal("0.012"), 600)


def test_a_resumption_forgives_starts_and_no_money() -> None:
    history = given(token_budget=1_000).started().started_model(1_000).taken_over().suspended(Reason.BUDGET)
    resumed = RunResumed(
        run_id=history.run.id, epoch=history.epoch, command_id="r", token_budget=1_500, cost_ceiling=None, max_steps=None
    )
    assert first(history.when(resumed)) == CallModel(1, 2, 500, Decimal("0.01"))


def test_all_of_it_is_folded_from_the_log() -> None:
    history = given().started().started_model(600).taken_over().started_model(300).answers(tool_use("a")).finished_tool("a")
    run = fold(history.started_model(70).records)
    assert run is not None
    assert (run.unsettled, run.spent_at_most) == (600, 600 + 15 + 10 + 70), "an answer of 15, of which 10 come again"


# ---- what happens at a limit


@pytest.mark.parametrize(
    "history",
    [
        given(token_budget=10, on_budget=OnBudget.FAIL).started(),
        given(token_budget=10, on_budget=OnBudget.FAIL).started().answers(tool_use("a")),
        at("0.0001", on_budget=OnBudget.FAIL),
        at("1", on_budget=OnBudget.FAIL).answers(tool_use("a"), cost=None),
        given(token_budget=6_000, on_budget=OnBudget.FAIL)
        .started()
        .answers(text("half"), stop_reason="max_tokens", output_tokens=4_096),
    ],
)
def test_a_run_fails_at_its_budget_where_its_requester_said_so(history: History) -> None:
    decision = first(history)
    assert isinstance(decision, Finish)
    assert (decision.status, decision.reason) == (Status.FAILED, Reason.BUDGET)


def test_a_resumed_run_keeps_what_its_requester_said() -> None:
    history = given(token_budget=10, on_budget=OnBudget.FAIL).started().suspended(Reason.MODEL_ACCESS)
    resumed = RunResumed(run_id=history.run.id, epoch=0, command_id="r", token_budget=12, cost_ceiling=None, max_steps=None)
    assert isinstance(first(history.when(resumed)), Finish)
