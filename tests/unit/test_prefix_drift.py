"""A conversation that this build rebuilds otherwise than it was sent: no further call, until somebody decides."""

from runfold.core.decisions import CallModel, RunTools, Suspend
from runfold.core.events import Reason, RunResumed, RunResumeRequested, Status
from runfold.testing import given
from runfold.testing.given import History, text, tool_use

OTHER = "ab" * 32
ASKED = given().started().started_model(prefix_digest=OTHER).answers(tool_use("a"))
DRIFTED = ASKED.finished_tool("a")


def resumed(history: History) -> History:
    command = RunResumeRequested(run_id=history.run.id, command_id="r1", requested_by="test")
    go_on = RunResumed(run_id=history.run.id, epoch=0, command_id="r1", token_budget=None, cost_ceiling=None, max_steps=None)
    return history.when(command, go_on)


def test_the_next_call_is_not_made_and_the_run_says_why() -> None:
    (decision, *_) = DRIFTED.decisions()
    assert isinstance(decision, Suspend)
    assert decision.reason is Reason.PREFIX_DRIFT
    assert OTHER[:12] in decision.detail


def test_what_was_asked_for_before_is_still_done() -> None:
    """It is what the model was told with the conversation as it was; and an answer that is there is not withheld."""
    assert isinstance(ASKED.decisions()[0], RunTools)
    answered = given().started().started_model(prefix_digest=OTHER).answers(text("42"))
    assert answered.finished().run.status is Status.SUCCEEDED


def test_nor_is_the_same_call_made_again_after_a_crash_or_a_failure() -> None:
    begun = given().started().started_model(prefix_digest=OTHER)
    for history in (begun.taken_over(), begun.failed_model(Reason.OVERLOADED, retry_in=0)):
        assert isinstance(history.decisions()[0], Suspend)


def test_a_build_that_rebuilds_it_as_it_was_goes_on() -> None:
    """The same log, with the digest as this build has it: what went wrong is the build, not the run."""
    right = given().started().answers(tool_use("a")).finished_tool("a")
    assert isinstance(right.decisions()[0], CallModel)


def test_resumed_it_goes_on_with_what_this_build_rebuilds() -> None:
    history = resumed(DRIFTED.suspended(Reason.PREFIX_DRIFT))
    assert isinstance(history.decisions()[0], CallModel)
    assert isinstance(history.answers(tool_use("b")).finished_tool("b").decisions()[0], CallModel)


def test_resumed_for_another_reason_it_is_still_checked() -> None:
    history = resumed(DRIFTED.suspended(Reason.BUDGET))
    (decision, *_) = history.decisions()
    assert isinstance(decision, Suspend)
    assert decision.reason is Reason.PREFIX_DRIFT


def test_what_the_api_says_of_it_has_the_same_end() -> None:
    history = given().started().failed_model(Reason.PREFIX_DRIFT)
    assert history.decisions()[0] == Suspend(Reason.PREFIX_DRIFT, "the model said PREFIX_DRIFT")


def test_the_definition_is_part_of_what_is_compared() -> None:
    first, second = (given().started(hash=hash_) for hash_ in ("0" * 64, "1" * 64))
    assert first.run.digest != second.run.digest
