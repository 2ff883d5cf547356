"""What stops a run: cancel, deadline, progress timeout, step cap, budgets. All from the log, so that no restart resets one."""

from decimal import Decimal
from typing import Any

import pytest

from runfold.core.decisions import Decision, Finish, Suspend, WaitUntil
from runfold.core.events import DEFAULT_MAX_STEPS, DEFAULT_TIMEOUT_MS, Reason, RunRequested, Status
from runfold.core.run import fold
from runfold.testing.given import START_MS, STEP_MS, History, given, text, tool_use

STARTED = given().started()


def stops(history: History, since: int = 0) -> tuple[Status, Reason] | None:
    """How the run is stopped now, or None when it goes on."""
    found: list[Decision] = [decision for decision in history.decisions(since=since) if isinstance(decision, Finish | Suspend)]
    if not found:
        return None
    [decision] = found
    if isinstance(decision, Finish):
        return decision.status, decision.reason
    assert isinstance(decision, Suspend)
    return Status.SUSPENDED, decision.reason


# ---- cancel


@pytest.mark.parametrize(
    "history",
    [
        given(),
        STARTED,
        STARTED.started_model(),
        STARTED.answers(tool_use("a")).started_tool("a"),
        STARTED.failed_model(Reason.OVERLOADED, retry_in=5_000),
        STARTED.suspended(Reason.BUDGET),
        STARTED.answers(tool_use("a")).started_tool("a", repeatable=False).suspended(Reason.OUTCOME_UNKNOWN, "a"),
    ],
)
def test_b01_a_cancel_stops_whatever_the_run_is_doing(history: History) -> None:
    cancelled = history.cancel_requested("c1", detail="enough")
    busy = [(1, 1), (2, 1)]
    assert cancelled.decisions(busy) == [Finish(Status.CANCELLED, Reason.CANCEL, "enough", command_id="c1")]


def test_b02_1_the_first_of_many_cancels_is_the_one() -> None:
    history = STARTED
    for n in range(10):
        history = history.cancel_requested(f"c{n}")
    [decision] = history.decisions()
    assert isinstance(decision, Finish)
    assert decision.command_id == "c0"


def test_a_cancel_in_the_log_before_the_end_comes_before_an_answer_that_is_there() -> None:
    assert stops(STARTED.answers(text("42")).cancel_requested()) == (Status.CANCELLED, Reason.CANCEL)


def test_b02_4_a_cancel_after_the_end_has_no_effect() -> None:
    history = STARTED.answers(text("42")).finished().cancel_requested()
    assert (history.run.status, history.decisions()) == (Status.SUCCEEDED, [])


# ---- deadline


def at(history: History, ms: int) -> History:
    """The same history, looked at ``ms`` after its start."""
    return history.after(START_MS + ms - history.now)


@pytest.mark.parametrize("history", [given(timeout_ms=1_000), given(timeout_ms=1_000).started().suspended(Reason.APPROVAL)])
def test_a_run_is_timed_out_at_its_deadline_and_not_before(history: History) -> None:
    assert stops(at(history, 999)) is None
    assert stops(at(history, 1_000)) == (Status.TIMED_OUT, Reason.DEADLINE)


def test_a_run_without_a_timeout_has_the_default() -> None:
    assert stops(at(STARTED, DEFAULT_TIMEOUT_MS - 1)) is None
    assert stops(at(STARTED, DEFAULT_TIMEOUT_MS)) == (Status.TIMED_OUT, Reason.DEADLINE)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**63)])
def test_u03_3_no_time_is_not_unlimited_time(timeout_ms: int) -> None:
    assert stops(given(timeout_ms=timeout_ms)) == (Status.TIMED_OUT, Reason.DEADLINE)


def test_an_answer_that_is_there_is_not_withheld_by_the_deadline() -> None:
    history = given(timeout_ms=1_000).started().answers(text("42"))
    assert stops(at(history, 5_000)) == (Status.SUCCEEDED, Reason.FINAL_ANSWER)


# ---- progress timeout


def test_without_progress_a_run_is_timed_out() -> None:
    history = given(progress_timeout_ms=1_000).started().started_model()
    assert history.decisions([(1, 1)]) == [WaitUntil(history.now + 1_000)]
    assert stops(history.after(999)) is None
    assert stops(history.after(1_000)) == (Status.TIMED_OUT, Reason.NO_PROGRESS)


def test_every_step_that_begins_or_ends_is_progress() -> None:
    history = given(progress_timeout_ms=1_000).started().after(900).started_model().after(900).answers(tool_use("a")).after(900)
    assert stops(history.started_tool("a").after(999 - STEP_MS)) is None


def test_the_pause_before_the_next_attempt_is_not_counted() -> None:
    """An overload is waited for for minutes: the run knows what it waits for."""
    failed = given(progress_timeout_ms=1_000).started().failed_model(Reason.OVERLOADED, retry_in=180_000)
    assert stops(failed.after(180_500)) is None
    assert stops(failed.after(181_500)) is not None


def test_ignored_records_are_no_progress() -> None:
    history = given(progress_timeout_ms=1_000).started().after(1_000).when(RunRequested(run_id="x", agent="a", input="b"))
    assert stops(history) == (Status.TIMED_OUT, Reason.NO_PROGRESS)


def test_r04_2_the_time_without_a_worker_is_not_charged() -> None:
    history = given(progress_timeout_ms=1_000).started().started_model().after(60_000).taken_over()
    assert stops(history, since=history.now) is None
    assert stops(history.after(999), since=history.now) is None
    assert stops(history.after(1_000), since=history.now) == (Status.TIMED_OUT, Reason.NO_PROGRESS)


def test_waiting_for_a_start_or_for_a_person_is_not_charged() -> None:
    assert stops(given(progress_timeout_ms=1_000).after(60_000)) is None
    assert stops(given(progress_timeout_ms=1_000).started().suspended(Reason.APPROVAL).after(60_000)) is None


# ---- step cap


def turns(count: int, **limits: Any) -> History:
    """So many model steps, each with one tool step, and the model step that is due then."""
    history = given(**limits).started()
    for n in range(count):
        history = history.answers(tool_use(f"t{n}")).finished_tool(f"t{n}")
    return history


def test_the_step_cap_counts_model_and_tool_steps() -> None:
    assert stops(turns(2, max_steps=5)) is None
    assert stops(turns(2, max_steps=4)) == (Status.FAILED, Reason.STEP_CAP)


def test_no_tool_of_a_turn_runs_that_the_cap_does_not_let_run_whole() -> None:
    history = given(max_steps=3).started().answers(tool_use("a"), tool_use("b"), tool_use("c"))
    assert stops(history) == (Status.FAILED, Reason.STEP_CAP)
    assert stops(given(max_steps=4).started().answers(tool_use("a"), tool_use("b"), tool_use("c"))) is None


def test_c08_3_pauses_without_end_meet_the_step_cap() -> None:
    history = given(max_steps=4).started()
    for n in range(4):
        assert stops(history) is None
        history = history.answers(text(str(n)), stop_reason="pause_turn")
    assert stops(history) == (Status.FAILED, Reason.STEP_CAP)


def test_attempts_are_no_steps() -> None:
    history = given(max_steps=1).started()
    for _ in range(5):
        history = history.failed_model(Reason.OVERLOADED, retry_in=0).after(1)
    assert stops(history) is None


def test_a_run_without_a_cap_has_the_default() -> None:
    assert stops(turns(DEFAULT_MAX_STEPS // 2 - 1)) is None
    assert stops(turns(DEFAULT_MAX_STEPS // 2)) == (Status.FAILED, Reason.STEP_CAP)


@pytest.mark.parametrize("max_steps", [0, -1])
def test_u03_3_no_steps_are_not_unlimited_steps(max_steps: int) -> None:
    assert stops(given(max_steps=max_steps).started()) == (Status.FAILED, Reason.STEP_CAP)


# ---- token budget


@pytest.mark.parametrize("budget", [0, -1])
def test_u03_3_no_budget_is_not_unlimited_budget(budget: int) -> None:
    assert stops(given(token_budget=budget).started()) == (Status.SUSPENDED, Reason.BUDGET)


def test_a_run_without_budget_and_ceiling_is_not_stopped_by_them() -> None:
    history = STARTED.answers(tool_use("a"), input_tokens=10**12, cost=None)
    assert stops(history) is None


def test_b04_3_what_is_spent_is_folded_from_the_log() -> None:
    history = given(token_budget=1_000).started().answers(tool_use("a"), input_tokens=1_000)
    run = fold(history.taken_over().records)
    assert run is not None
    assert run.spent == 1_005
    assert stops(history.taken_over()) == (Status.SUSPENDED, Reason.BUDGET)


# ---- cost ceiling


@pytest.mark.parametrize(
    ("cost", "stopped"), [("0.499999999999", False), ("0.5", True), ("0.500000000000", True), ("7", True)]
)
def test_a_run_stops_at_its_cost_ceiling(cost: str, stopped: bool) -> None:
    history = given(cost_ceiling=Decimal("0.50")).started().answers(tool_use("a"), cost=Decimal(cost))
    assert stops(history) == ((Status.SUSPENDED, Reason.BUDGET) if stopped else None)


def test_b08_3_a_cost_that_is_not_known_is_not_below_the_ceiling() -> None:
    history = given(cost_ceiling=Decimal(1_000)).started().answers(tool_use("a"), cost=None)
    assert stops(history) == (Status.SUSPENDED, Reason.BUDGET)


@pytest.mark.parametrize("ceiling", [Decimal(0), Decimal(-1)])
def test_u03_3_no_money_is_not_unlimited_money(ceiling: Decimal) -> None:
    assert stops(given(cost_ceiling=ceiling).started()) == (Status.SUSPENDED, Reason.BUDGET)


def test_the_detail_says_what_was_spent_of_what_in_plain_figures() -> None:
    history = given(cost_ceiling=Decimal("0.000000000000")).started()
    assert history.decisions()[0] == Suspend(Reason.BUDGET, "0 of 0 USD are spent")
    history = given(cost_ceiling=Decimal("0.500000000000")).started().answers(tool_use("a"), cost=Decimal("20.000000000000"))
    assert history.decisions()[0] == Suspend(Reason.BUDGET, "20 of 0.5 USD are spent")


# ---- which one when several hold


def test_guards_speak_in_a_fixed_order() -> None:
    """Cancel, what an event has decided, deadline, progress, then what a further step would cost."""
    history = given(timeout_ms=1_000, progress_timeout_ms=500, max_steps=1, token_budget=1).started().answers(tool_use("a"))
    assert stops(history) == (Status.FAILED, Reason.STEP_CAP)
    assert stops(history.after(500)) == (Status.TIMED_OUT, Reason.NO_PROGRESS)
    assert stops(history.after(1_000)) == (Status.TIMED_OUT, Reason.DEADLINE)
    assert stops(history.after(1_000).cancel_requested()) == (Status.CANCELLED, Reason.CANCEL)
