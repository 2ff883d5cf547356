"""A suspended run and the command to go on."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from runfold.core.decide import MAX_STARTS
from runfold.core.decisions import CallModel, Finish, Reject, Resume, RunTools, Suspend
from runfold.core.events import (
    CommandRejected,
    Reason,
    Rejection,
    RunResumed,
    RunResumeRequested,
    RunSuspended,
    Status,
)
from runfold.core.limits import replace_limits
from runfold.testing import given
from runfold.testing.given import History, text, tool_use


def ask(history: History, **limits: Any) -> History:
    return history.when(RunResumeRequested(run_id=history.run.id, command_id="r1", requested_by="test", **limits))


def resumed(history: History) -> History:
    """What the planner writes for `Resume`."""
    (decision, *_) = history.decisions()
    assert isinstance(decision, Resume)
    limits = decision.command
    return history.when(
        RunResumed(
            run_id=history.run.id,
            epoch=history.epoch,
            command_id=limits.command_id,
            token_budget=limits.token_budget,
            cost_ceiling=limits.cost_ceiling,
            max_steps=limits.max_steps,
        )
    )


def suspended(history: History) -> History:
    (decision, *_) = history.decisions()
    assert isinstance(decision, Suspend)
    return history.when(
        RunSuspended(
            run_id=history.run.id,
            epoch=history.epoch,
            reason=decision.reason,
            detail=decision.detail,
            tool_use_id=decision.tool_use_id,
        )
    )


def test_a_run_at_its_budget_goes_on_with_a_higher_one() -> None:
    history = suspended(given("go", token_budget=10).started().answers(tool_use("a"), stop_reason="tool_use"))
    assert history.run.reason is Reason.BUDGET
    history = resumed(ask(history, token_budget=1000))
    assert (history.run.status, history.run.limits.token_budget, history.run.resumes) == (Status.RUNNING, 1000, ())
    assert isinstance(history.decisions()[0], RunTools)


def test_a_resumption_without_more_budget_stops_again() -> None:
    history = suspended(given("go", token_budget=10).started().answers(tool_use("a"), stop_reason="tool_use"))
    assert isinstance(resumed(ask(history)).decisions()[0], Suspend)


def test_an_unknown_outcome_is_called_again_under_the_same_attempt_rules() -> None:
    history = given("go").started().answers(tool_use("a"), stop_reason="tool_use").started_tool("a", repeatable=False)
    history = suspended(history.taken_over())
    assert history.run.reason is Reason.OUTCOME_UNKNOWN
    (decision, *_) = resumed(ask(history)).decisions()
    assert isinstance(decision, RunTools)
    assert [call.attempt for call in decision.calls] == [1]


def test_a_crash_loop_is_forgiven_once_per_resumption() -> None:
    history = given("go").started()
    for _ in range(MAX_STARTS):
        history = history.started_model().taken_over()
    history = suspended(history)
    assert history.run.reason is Reason.CRASH_LOOP
    history = resumed(ask(history))
    (decision, *_) = history.decisions()
    assert isinstance(decision, CallModel)
    assert (decision.seq, decision.attempt) == (1, MAX_STARTS + 1)


def test_a_run_that_is_not_suspended_rejects_the_command() -> None:
    history = ask(given("go").started())
    (decision, *_) = history.decisions()
    assert decision == Reject("r1", Rejection.NOT_SUSPENDED)
    history = history.when(
        CommandRejected(run_id=history.run.id, epoch=history.epoch, command_id="r1", reason=Rejection.NOT_SUSPENDED)
    )
    assert history.run.resumes == ()
    assert isinstance(history.decisions()[0], CallModel)


def test_a_cancel_goes_before_a_resumption() -> None:
    history = suspended(given("go", token_budget=10).started().answers(tool_use("a"), stop_reason="tool_use"))
    assert isinstance(ask(history).cancel_requested().decisions()[0], Finish)


def test_the_same_command_twice_counts_once() -> None:
    history = ask(ask(given("go").started()))
    assert len(history.run.resumes) == 1


def test_a_command_repeated_after_it_was_answered_has_no_effect() -> None:
    """A client's retry must not call an unrepeatable tool once more without a person."""
    history = given("go").started().answers(tool_use("a"), stop_reason="tool_use").started_tool("a", repeatable=False)
    history = resumed(ask(suspended(history.taken_over())))
    history = suspended(history.started_tool("a", repeatable=False).taken_over())
    again = ask(history)
    assert again.run is history.run
    assert not any(isinstance(decision, Resume) for decision in again.decisions())


def test_commands_are_no_progress() -> None:
    """One a minute would keep a stuck run from NO_PROGRESS for ever."""
    history = given("go", progress_timeout_ms=60_000).started()
    assert ask(history.after(30_000)).run.last_at == history.run.last_at


@pytest.mark.parametrize("limits", [{"cost_ceiling": Decimal(2)}, {"max_steps": 9}])
def test_limits_that_are_not_given_stay(limits: dict[str, Any]) -> None:
    history = suspended(given("go", token_budget=10).started().answers(tool_use("a"), stop_reason="tool_use"))
    limits_now = replace_limits(history.run.limits, ask(history, **limits).run.resumes[0])
    assert limits_now == replace(history.run.limits, **limits)


def test_a_final_answer_is_untouched() -> None:
    history = given("go").started().answers(text("done"))
    assert isinstance(ask(history).decisions()[0], Finish)
