"""What a run does next, and what it does about a worker that died."""

from typing import Any

import pytest

from runfold.core.decide import LARGEST_ANSWER, MAX_STARTS, MAX_TRUNCATED
from runfold.core.decisions import Begin, CallModel, Decision, Finish, RunTools, Suspend, WaitUntil
from runfold.core.events import Reason, Status, Usage
from runfold.testing.given import START_MS, History, given, text, tool_use

STARTED = given().started()
ASKED = STARTED.answers(tool_use("a"), tool_use("b"))


def actions(history: History, *in_hand: tuple[int, int], since: int = 0) -> list[Decision]:
    """All decisions but the `WaitUntil` that every run ends with which goes on."""
    decisions = history.decisions(in_hand, since)
    if not any(isinstance(decision, Finish) for decision in decisions):
        assert isinstance(decisions[-1], WaitUntil)
        decisions.pop()
    assert not any(isinstance(decision, WaitUntil) for decision in decisions)
    return decisions


def due(history: History, *in_hand: tuple[int, int]) -> list[str]:
    [decision] = actions(history, *in_hand)
    assert isinstance(decision, RunTools)
    return [call.id for call in decision.calls]


# ---- the course of a run


def test_a_requested_run_begins() -> None:
    assert actions(given()) == [Begin()]


def test_a_started_run_calls_the_model() -> None:
    assert actions(STARTED) == [CallModel(seq=1, attempt=1, max_tokens=4096)]


def test_calls_of_a_turn_run_side_by_side() -> None:
    assert due(ASKED) == ["a", "b"]


def test_the_model_is_called_when_the_last_result_is_there() -> None:
    assert due(ASKED.finished_tool("b")) == ["a"]
    assert actions(ASKED.finished_tool("b").finished_tool("a")) == [CallModel(4, 1, 4096)]


def test_a_final_answer_ends_the_run() -> None:
    assert actions(STARTED.answers(text("42"))) == [Finish(Status.SUCCEEDED, Reason.FINAL_ANSWER)]


def test_a_pause_calls_again() -> None:
    assert actions(STARTED.answers(text("wait"), stop_reason="pause_turn")) == [CallModel(2, 1, 4096)]


def test_an_ended_run_does_nothing() -> None:
    assert STARTED.answers(text("42")).finished().decisions() == []


def test_blank_input_ends_the_run_before_it_begins() -> None:
    [decision] = actions(given(" "))
    assert isinstance(decision, Finish)
    assert (decision.status, decision.reason) == (Status.FAILED, Reason.CONFIG)


# ---- what the worker has in hand


def test_a_model_call_in_hand_is_left_alone() -> None:
    assert actions(STARTED.started_model(), (1, 1)) == []


def test_a_model_call_that_is_being_started_is_not_started_again() -> None:
    assert actions(STARTED, (1, 1)) == []
    assert actions(STARTED.failed_model(Reason.OVERLOADED, retry_in=0).after(1), (1, 2)) == []


def test_tools_in_hand_are_left_alone() -> None:
    assert due(ASKED.started_tool("a"), (2, 1)) == ["b"]
    assert due(ASKED, (3, 1)) == ["a"]
    assert actions(ASKED, (2, 1), (3, 1)) == []


def test_what_died_with_its_worker_is_made_again() -> None:
    assert actions(STARTED.started_model()) == [CallModel(1, 2, 4096)]
    assert due(ASKED.started_tool("a").started_tool("b"), (3, 1)) == ["a"]


def test_a_call_that_began_is_finished_also_when_no_further_step_may_begin() -> None:
    """A build with a higher cap began it."""
    assert due(given(max_steps=1).started().answers(tool_use("a")).started_tool("a")) == ["a"]


def test_an_attempt_in_hand_of_another_step_means_nothing() -> None:
    assert actions(STARTED.started_model(), (2, 1)) == [CallModel(1, 2, 4096)]


# ---- retries


def test_a_retry_waits_for_its_time() -> None:
    history = STARTED.failed_model(Reason.OVERLOADED, retry_in=1_000)
    retry_at = history.run.step.retry_at
    assert retry_at is not None
    assert history.decisions() == [WaitUntil(retry_at)]
    waited = history.after(retry_at - history.now)
    assert actions(waited) == [CallModel(1, 2, 4096)]
    assert actions(waited.after(-1)) == []


def test_a_retry_later_than_the_deadline_waits_for_the_deadline() -> None:
    history = given(timeout_ms=5_000).started().failed_model(Reason.OVERLOADED, retry_in=60_000)
    assert history.decisions() == [WaitUntil(START_MS + 5_000)]


def test_a01_a_failure_for_good_is_not_tried_again() -> None:
    [decision] = actions(STARTED.failed_model(Reason.MODEL_REQUEST))
    assert isinstance(decision, Finish)
    assert (decision.status, decision.reason) == (Status.FAILED, Reason.MODEL_REQUEST)


def test_a_failure_every_run_would_die_of_waits_for_an_operator() -> None:
    history = STARTED.failed_model(Reason.MODEL_ACCESS)
    assert [type(decision) for decision in actions(history)] == [Suspend]
    assert actions(history.suspended(Reason.MODEL_ACCESS)) == []


# ---- steps that kill their worker


def killed(history: History, times: int) -> History:
    for _ in range(times):
        history = history.started_tool("a").taken_over()
    return history


def test_r07_a_tool_that_kills_its_worker_is_started_so_often_and_no_more() -> None:
    """R07.2: the count is in the log, and no restart resets it."""
    history = STARTED.answers(tool_use("a"))
    assert 3 <= MAX_STARTS <= 5
    assert due(killed(history, MAX_STARTS - 1)) == ["a"]
    [decision] = actions(killed(history, MAX_STARTS))
    assert isinstance(decision, Suspend)
    assert (decision.reason, decision.tool_use_id) == (Reason.CRASH_LOOP, "a")


def test_r07_the_last_start_may_still_end_well() -> None:
    assert actions(killed(STARTED.answers(tool_use("a")), MAX_STARTS), (2, MAX_STARTS)) == []


def test_r07_other_calls_of_the_turn_are_not_taken_for_the_killer() -> None:
    [tools, suspend] = actions(killed(ASKED, MAX_STARTS))
    assert isinstance(tools, RunTools)
    assert [call.id for call in tools.calls] == ["b"]
    assert isinstance(suspend, Suspend)


def test_r07_a_model_step_that_kills_its_worker_is_stopped_too() -> None:
    history = STARTED
    for _ in range(MAX_STARTS):
        assert [type(decision) for decision in actions(history)] == [CallModel]
        history = history.started_model().taken_over()
    [decision] = actions(history)
    assert isinstance(decision, Suspend)
    assert decision.reason is Reason.CRASH_LOOP


def test_attempts_that_failed_in_an_orderly_way_are_no_crashes() -> None:
    history = STARTED
    for _ in range(MAX_STARTS + 1):
        history = history.failed_model(Reason.OVERLOADED, retry_in=0).after(1)
    assert actions(history) == [CallModel(1, MAX_STARTS + 2, 4096)]


def test_r07_4_a_cancel_ends_a_crash_loop() -> None:
    [decision] = actions(killed(ASKED, 2).cancel_requested("c1"))
    assert decision == Finish(Status.CANCELLED, Reason.CANCEL, command_id="c1")


# ---- tools that cannot be repeated


def test_t07_1_an_unknown_outcome_is_left_to_a_person() -> None:
    history = STARTED.answers(tool_use("charge", "charge")).started_tool("charge", repeatable=False)
    [decision] = actions(history.taken_over())
    assert isinstance(decision, Suspend)
    assert (decision.reason, decision.tool_use_id) == (Reason.OUTCOME_UNKNOWN, "charge")
    assert "charge" in decision.detail
    assert decision.detail.endswith("`runfold resume` calls it again, `runfold quarantine fail` gives the run up")


def test_t07_a_call_that_was_never_started_is_no_unknown_outcome() -> None:
    assert due(ASKED.taken_over()) == ["a", "b"]


def test_t07_3_it_stays_suspended_after_a_restart() -> None:
    history = STARTED.answers(tool_use("a")).started_tool("a", repeatable=False).suspended(Reason.OUTCOME_UNKNOWN, "a")
    assert actions(history.taken_over()) == []


def test_t07_4_only_the_call_that_cannot_be_repeated_waits() -> None:
    history = ASKED.started_tool("a", repeatable=False).started_tool("b").taken_over()
    tools, suspend = actions(history)
    assert isinstance(tools, RunTools)
    assert [call.id for call in tools.calls] == ["b"]
    assert isinstance(suspend, Suspend)
    suspended = history.suspended(Reason.OUTCOME_UNKNOWN, "a")
    assert due(suspended) == ["b"]
    assert actions(suspended.finished_tool("b")) == [], "the conversation is not complete without it"


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.OUTCOME_UNKNOWN}))
def test_a_run_suspended_for_any_other_reason_starts_nothing(reason: Reason) -> None:
    assert actions(ASKED.suspended(reason)) == []
    assert actions(STARTED.suspended(reason)) == []


# ---- max_tokens


def cut(history: History, times: int, output_tokens: int = 5) -> History:
    for _ in range(times):
        history = history.answers(text("half"), stop_reason="max_tokens", output_tokens=output_tokens)
    return history


def test_c07_2_a_cut_answer_is_asked_for_again_with_more_room_and_then_given_up() -> None:
    for times in range(MAX_TRUNCATED):
        assert actions(cut(STARTED, times)) == [CallModel(times + 1, 1, 4096 * 2**times)]
    [decision] = actions(cut(STARTED, MAX_TRUNCATED))
    assert isinstance(decision, Finish)
    assert (decision.status, decision.reason) == (Status.FAILED, Reason.MAX_TOKENS)


def test_c07_2_the_largest_answer_is_not_asked_for_again() -> None:
    """The same request again could only be cut again."""
    [decision] = actions(cut(given().started(max_tokens=LARGEST_ANSWER), 1))
    assert isinstance(decision, Finish)
    assert decision.reason is Reason.MAX_TOKENS
    assert actions(cut(given().started(max_tokens=100_000), 1)) == [CallModel(2, 1, LARGEST_ANSWER)]


def test_c07_2_an_answer_is_not_asked_for_again_with_less_room_than_it_was_cut_at() -> None:
    history = cut(given(token_budget=6_000).started(), 1, output_tokens=4_096)
    [decision] = actions(history)
    assert isinstance(decision, Suspend)
    assert decision.reason is Reason.BUDGET
    assert "1884" in decision.detail, "6,000 less 4,106 spent and the 10 of the prompt that comes again"


def test_room_grows_only_for_the_step_that_was_cut() -> None:
    history = cut(STARTED, 2).answers(tool_use("a")).finished_tool("a")
    assert actions(history) == [CallModel(5, 1, 4096)]


@pytest.mark.parametrize("max_tokens", [0, -1, LARGEST_ANSWER + 1, 10**12])
def test_a07_max_tokens_that_no_model_takes_are_refused_before_the_first_request(max_tokens: int) -> None:
    [decision] = actions(given().started(max_tokens=max_tokens))
    assert isinstance(decision, Finish)
    assert (decision.status, decision.reason) == (Status.FAILED, Reason.CONFIG)
    assert str(max_tokens) in decision.detail


# ---- budgets: what is left is reserved


def budgeted(turns: int, **limits: Any) -> History:
    """B04's run: each answer reports 300 tokens in and 100 out and asks for a tool."""
    history = given(**limits).started()
    for turn in range(turns):
        history = history.answers(tool_use(f"t{turn}"), input_tokens=300, output_tokens=100)
        if turn + 1 < turns:
            history = history.finished_tool(f"t{turn}")
    return history


def test_b04_2_no_request_may_answer_with_more_than_the_budget_leaves() -> None:
    assert actions(budgeted(0, token_budget=1_000)) == [CallModel(1, 1, 1_000)]
    assert actions(budgeted(1, token_budget=1_000).finished_tool("t0")) == [CallModel(3, 1, 300)]


def test_b04_1_a_call_whose_prompt_alone_is_too_much_is_not_made() -> None:
    [decision] = actions(budgeted(2, token_budget=1_000).finished_tool("t1"))
    assert decision == Suspend(Reason.BUDGET, "800 of 1000 tokens are spent; the next call takes at least 316")
    [decision] = actions(budgeted(3, token_budget=1_000))
    assert decision == Suspend(Reason.BUDGET, "1200 of 1000 tokens are spent")


def test_b04_4_nothing_left_is_not_unlimited() -> None:
    [decision] = actions(budgeted(2, token_budget=800))
    assert decision == Suspend(Reason.BUDGET, "800 of 800 tokens are spent")


def test_b04_5_the_tools_of_a_turn_that_spent_the_budget_do_not_run() -> None:
    history = given(token_budget=1_000).started().answers(tool_use("a"), input_tokens=4_000, output_tokens=1_000)
    assert [type(decision) for decision in actions(history)] == [Suspend]


def test_b04_2_tokens_of_failed_attempts_are_spent() -> None:
    """Else a stream that breaks again and again could cost a multiple of the budget."""
    begun = given(token_budget=1_000).started().started_model(50)
    history = begun.failed_model(Reason.CONNECTION, retry_in=0, usage=Usage(input_tokens=800, output_tokens=10))
    assert actions(history.after(1)) == [CallModel(1, 2, 150)], "the 40 that it may have said unheard are not there either"


def test_a_final_answer_is_not_withheld_by_a_spent_budget() -> None:
    history = given(token_budget=10).started().answers(text("42"), output_tokens=500)
    assert actions(history) == [Finish(Status.SUCCEEDED, Reason.FINAL_ANSWER)]


# ---- the next look


def test_every_run_that_goes_on_says_when_to_look_again() -> None:
    for history in (given(), STARTED, ASKED, ASKED.suspended(Reason.APPROVAL), STARTED.failed_model(Reason.MODEL_ACCESS)):
        assert history.decisions()[-1] == WaitUntil(history.run.deadline)
