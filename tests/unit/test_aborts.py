"""What an owner aborts because it has to let go is due again, and is not taken for what kills its worker."""

from decimal import Decimal

import pytest

from runfold.audit import verify
from runfold.core import snapshot
from runfold.core.decide import MAX_STARTS
from runfold.core.decisions import CallModel, RunTools, Suspend
from runfold.core.events import Reason, RunResumed, RunResumeRequested, StepAborted
from runfold.core.run import Run
from runfold.testing.given import RUN_ID, History, given, text, tool_use

ASKED = given("go").started().answers(tool_use("a"), tool_use("b"), stop_reason="tool_use")


def abort_of(seq: int, attempt: int) -> StepAborted:
    return StepAborted(run_id=RUN_ID, epoch=0, seq=seq, attempt=attempt)


def aborted_often(history: History, tool_use_id: str | None = None) -> History:
    for _ in range(MAX_STARTS + 1):
        history = history.started_model() if tool_use_id is None else history.started_tool(tool_use_id)
        history = history.aborted(tool_use_id).taken_over()
    return history


def test_a_model_call_is_made_again_however_often_it_was_aborted() -> None:
    history = aborted_often(given("go").started())
    (decision, *_) = history.decisions()
    assert isinstance(decision, CallModel)
    assert (decision.seq, decision.attempt) == (1, MAX_STARTS + 2)
    assert history.answers(text("done")).run.output == "done"


def test_so_is_a_tool_call_and_the_one_beside_it_is_untouched() -> None:
    history = aborted_often(ASKED.started_tool("b"), "a")
    (decision, *_) = history.decisions(busy=[(3, 1)])
    assert isinstance(decision, RunTools)
    assert [(call.id, call.attempt) for call in decision.calls] == [("a", MAX_STARTS + 1)]
    assert [call.open for call in history.run.calls] == [False, True]


@pytest.mark.parametrize("tool", [None, "a"])
def test_deaths_count_beside_aborts(tool: str | None) -> None:
    history = aborted_often(ASKED if tool else given("go").started(), tool)
    for _ in range(MAX_STARTS):
        history = (history.started_tool(tool) if tool else history.started_model()).taken_over()
    stop = history.decisions()[-2]
    assert isinstance(stop, Suspend)
    assert stop.reason is Reason.CRASH_LOOP


def test_a_person_resumes_with_as_many_starts_as_ever() -> None:
    history = given("go").started().started_model().aborted().taken_over()
    for _ in range(MAX_STARTS):
        history = history.started_model().taken_over()
    history = history.suspended(Reason.CRASH_LOOP).when(
        RunResumeRequested(run_id=RUN_ID, command_id="r1", requested_by="alice"),
        RunResumed(run_id=RUN_ID, epoch=history.epoch, command_id="r1", token_budget=None, cost_ceiling=None, max_steps=None),
    )
    for _ in range(MAX_STARTS - 1):
        history = history.started_model().taken_over()
    assert isinstance(history.decisions()[0], CallModel)
    assert isinstance(history.started_model().taken_over().decisions()[0], Suspend)


def test_what_it_may_have_cost_counts_at_most_as_of_any_call_whose_end_is_not_known() -> None:
    history = given("go").started().started_model(500, reserved_cost=Decimal("0.5")).aborted()
    run = history.run
    assert (run.unsettled, run.unsettled_cost, run.step.reserved) == (500, Decimal("0.5"), 0)
    assert history.taken_over().started_model(300).run.unsettled == 500, "once"


@pytest.mark.parametrize("event", [abort_of(1, 2), abort_of(2, 1), abort_of(1, 0)])
def test_an_abort_of_another_attempt_changes_nothing(event: StepAborted) -> None:
    history = given("go").started().started_model()
    assert history.when(event).run is history.run


def test_a_second_one_changes_nothing() -> None:
    for history in (given("go").started().started_model().aborted(), ASKED.started_tool("a").aborted("a")):
        seq = 2 if history.run.calls else 1
        assert history.when(abort_of(seq, 1)).run is history.run


def test_the_outcome_of_a_tool_that_cannot_be_repeated_stays_unknown() -> None:
    history = ASKED.started_tool("a", repeatable=False)
    forged = history.when(abort_of(2, 1))
    assert forged.run is history.run
    decisions = forged.taken_over().decisions()
    assert any(isinstance(decision, Suspend) and decision.reason is Reason.OUTCOME_UNKNOWN for decision in decisions)
    (found,) = verify(forged.records)
    assert found.invariant == "fold_agrees"


def test_nothing_is_found_in_a_log_with_aborts() -> None:
    history = aborted_often(given("go", token_budget=100_000).started())
    history = aborted_often(history.answers(tool_use("a"), stop_reason="tool_use"), "a").finished_tool("a").answers(text("done"))
    assert verify(history.finished().records) == []


def test_a_snapshot_keeps_count() -> None:
    run = aborted_often(given("go").started()).run
    assert snapshot.from_text(Run, snapshot.to_text(run)) == run
