"""What holds of a run, whoever wrote its records. Each function is one invariant: its name, its sentence, its check.

A check is given the `Trace` of the run before the record, and the record's event; it returns how the event breaks the invariant,
or None. `CHECKS` says which are asked of which event, in this order; the first that is broken is reported.
"""

from dataclasses import fields, replace

from runfold.audit.findings import Check
from runfold.audit.steps import MODEL_START, RESULT, TOOL_START
from runfold.audit.trace import LONGEST_ID, Trace
from runfold.core import snapshot
from runfold.core.events import (
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    RunFinished,
    RunResumed,
    RunSnapshotted,
    RunStarted,
    Status,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.run import LAST_MS, Run

# ---- the start of a run


def one_start(trace: Trace, event: RunStarted) -> str | None:
    """A run starts once."""
    return "the run has started before" if trace.started else None


def deadline_as_requested(trace: Trace, event: RunStarted) -> str | None:
    """The deadline is the broker's time of RunRequested plus the timeout that it asks for."""
    timeout = trace.request.limits.timeout_ms
    if timeout is None or event.deadline == (expected := min(trace.requested_at + timeout, LAST_MS)):
        return None
    return f"the deadline is {event.deadline}, expected {expected}"


# ---- the end of a run


def ends_have_a_final_status(trace: Trace, event: RunFinished) -> str | None:
    """RunFinished has a final status."""
    return None if event.status.final else f"RunFinished says {event.status}"


def success_has_an_answer(trace: Trace, event: RunFinished) -> str | None:
    """A run that SUCCEEDED ends with a final answer of the model."""
    if event.status is not Status.SUCCEEDED or (trace.answer and trace.answer.stop_reason in ("end_turn", "stop_sequence")):
        return None
    return f"the run SUCCEEDED and its last answer stopped with {trace.answer and trace.answer.stop_reason}"


def totals_are_sums(trace: Trace, event: RunFinished) -> str | None:
    """RunFinished carries the sums of usage and cost over the run's answers, and its highest seq."""
    said, found = (event.usage, event.cost, event.steps), (trace.usage, trace.cost, trace.highest)
    return None if said == found else f"usage, cost and steps are {said}, the records before add up to {found}"


def output_is_the_conversation(trace: Trace, event: RunFinished) -> str | None:
    """The output of a run is the text of its conversation's last answer that has any."""
    expected = trace.run.output
    return None if event.output == expected else f"the output is {event.output[:100]!r}, the log folds to {expected[:100]!r}"


def ending_command_exists(trace: Trace, event: RunFinished) -> str | None:
    """The command that ended a run stands before its end; a run is CANCELLED by a command alone."""
    if event.command_id is None:
        return "the run is CANCELLED by no command" if event.status is Status.CANCELLED else None
    known = event.command_id[:LONGEST_ID] in trace.cancels
    return None if known else f"no RunCancelRequested {event.command_id[:100]!r} of the run stands before"


# ---- between


def resumed_on_request(trace: Trace, event: RunResumed) -> str | None:
    """A run is resumed when it is suspended, by a RunResumeRequested before it, which resumes it once."""
    if trace.suspended is None:
        return "the run is not suspended"
    known = event.command_id in trace.resumes
    return None if known else f"no unanswered RunResumeRequested {event.command_id[:100]!r} of the run stands before"


def snapshots_are_the_fold(trace: Trace, event: RunSnapshotted) -> str | None:
    """A snapshot is the state that the run's records up to its last_offset fold to; only commands may stand after these."""
    if event.state_version != snapshot.VERSION:
        return None
    known = trace.states.get(event.last_offset)
    if known is None:
        return f"its last record is {event.last_offset}, the run's is {trace.run.last_offset}"
    try:
        state = replace(snapshot.from_text(Run, event.state_json), fold_from=known.fold_from)  # where a fold began is no state
    except (ValueError, KeyError, TypeError) as error:
        return f"its state cannot be read: {error!r}"
    wrong = [each.name for each in fields(Run) if getattr(state, each.name) != getattr(known, each.name)]
    return f"it differs from the fold in {', '.join(wrong)}" if wrong else None


CHECKS: dict[type, tuple[Check, ...]] = {
    RunStarted: (one_start, deadline_as_requested),
    ModelStepStarted: MODEL_START,
    ToolStepStarted: TOOL_START,
    ModelStepCompleted: RESULT,
    ModelStepFailed: RESULT,
    ToolStepFinished: RESULT,
    RunResumed: (resumed_on_request,),
    RunFinished: (
        ends_have_a_final_status,
        totals_are_sums,
        success_has_an_answer,
        output_is_the_conversation,
        ending_command_exists,
    ),
    RunSnapshotted: (snapshots_are_the_fold,),
}
