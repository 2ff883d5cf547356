"""Each invariant is broken on purpose by one record of an otherwise good log, and found: its name, and where."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from runfold.audit import Auditor, verify
from runfold.audit.findings import name_of, sentence_of
from runfold.audit.partition import BACKWARDS_MS, all_checks
from runfold.core import snapshot
from runfold.core.events import (
    CommandRejected,
    Delivery,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepStarted,
    Problem,
    Reason,
    Record,
    Rejection,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    Status,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
    Usage,
)
from runfold.testing import given
from runfold.testing.given import RUN_ID, History, text, tool_use
from tests.replay.golden_log import LOGS, read_log

OTHER = "6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e11"
NAMES = {name_of(check) for check in all_checks()}


def begun() -> History:
    """0 lease, 1 request, 2 start."""
    return given("go", token_budget=10_000, timeout_ms=60_000, max_steps=6, cost_ceiling=Decimal(1)).started()


def asked() -> History:
    """3 and 4: the answer asks for two tools."""
    return begun().answers(tool_use("t1", "look", {"n": 1}), tool_use("t2"))


def answered() -> History:
    """5 to 8: both tools; 9 and 10: the final answer."""
    return asked().finished_tool("t1").finished_tool("t2").answers(text("done"))


def ended() -> History:
    """11: the end."""
    return answered().finished()


def stuck() -> History:
    """5: a tool that cannot be repeated, 6: the next owner's lease, 7: the suspension."""
    history = asked().started_tool("t1", repeatable=False).taken_over()
    return history.suspended(Reason.OUTCOME_UNKNOWN, "t1")


def resumed(history: History, command: str = "r1") -> History:
    answer = RunResumed(
        run_id=RUN_ID, epoch=history.epoch, command_id=command, token_budget=None, cost_ceiling=None, max_steps=None
    )
    return history.when(RunResumeRequested(run_id=RUN_ID, command_id="r1", requested_by="ann"), answer)


def snapshotted(history: History, **changes: Any) -> History:
    state = replace(history.run, **changes)
    event = RunSnapshotted(
        run_id=RUN_ID,
        epoch=history.epoch,
        last_offset=state.last_offset,
        state_version=snapshot.VERSION,
        state_json=snapshot.to_text(state),
    )
    return history.when(event)


def rejected(history: History) -> History:
    event = CommandRejected(run_id=RUN_ID, epoch=history.epoch, command_id="c9", reason=Rejection.RUN_FINISHED)
    return history.when(event)


GOOD: dict[str, Callable[[], History]] = {
    "ended": ended,
    "ended, and a command was late": lambda: rejected(ended()),
    "a step that died with its worker": lambda: begun().started_model().taken_over().answers(text("done")).finished(),
    "a step that failed": lambda: begun().failed_model(Reason.OVERLOADED, retry_in=5).answers(text("done")).finished(),
    "a truncated answer": lambda: begun().answers(text("do"), stop_reason="max_tokens").answers(text("done")).finished(),
    "a pause": lambda: begun().answers(text("hm"), stop_reason="pause_turn").answers(text("done")).finished(),
    "a cancelled run": lambda: begun().started_model().cancel_requested().finished(Status.CANCELLED, Reason.CANCEL, "c1"),
    "the other call of a stuck turn": lambda: stuck().finished_tool("t2"),
    "a stuck call that was resumed": lambda: resumed(stuck()).finished_tool("t1").finished_tool("t2").answers(text("done")),
    "access that was given": lambda: (
        resumed(begun().failed_model(Reason.MODEL_ACCESS).suspended(Reason.MODEL_ACCESS)).answers(text("done")).finished()
    ),
    "a snapshot": lambda: snapshotted(asked()).finished_tool("t1"),
    "a snapshot that a command came before": lambda: asked().cancel_requested().when(snapshotted(asked()).records[-1].event),
    "input that JSON cannot carry": lambda: (
        begun().answers(content_json='[{"type":"tool_use","id":"t1","name":"x","input":{"n":NaN}}]', stop_reason="tool_use")
        .finished_tool("t1")
    ),
    "a run that was requested twice": lambda: begun().when(RunRequested(run_id=RUN_ID, agent="other", input="else")),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_a_good_log(name: str) -> None:
    assert verify(GOOD[name]().records) == []


def test_nothing_is_found_in_the_log_of_a_release() -> None:
    logs = list(LOGS.glob("*.jsonl"))
    assert logs
    for log in logs:
        assert verify(read_log(log.read_text())) == []


# ---- forgeries


def forged(history: History, offset: int, **changes: Any) -> list[Delivery]:
    """The log with other words in the event at ``offset``."""
    records = list(history.records)
    records[offset] = replace(records[offset], event=replace(records[offset].event, **changes))
    return [*records]


def more(history: History, *events: Any) -> list[Delivery]:
    """The log and further events, which nobody would have written."""
    return [*history.when(*events).records]


def again(history: History, offset: int, **changes: Any) -> list[Delivery]:
    """The log, and its event at ``offset`` once more."""
    return more(history, replace(history.records[offset].event, **changes))


def without(history: History, offset: int) -> list[Delivery]:
    return [record for record in history.records if record.offset != offset]


def tool(history: History, **changes: Any) -> list[Delivery]:
    """The log, and a tool step that runs t1 for the first time, but for the ``changes``."""
    good = asked().started_tool("t1").records[-1].event
    return more(history, replace(good, **changes))


def model(history: History, **changes: Any) -> list[Delivery]:
    """The log, and the next model step, but for the ``changes``."""
    return more(history, replace(history.started_model().records[-1].event, **changes))


BAD = Unreadable(0, 3, 0, RUN_ID.encode(), b"?", Problem.MALFORMED, "no framing")
SPENT = Usage(input_tokens=9_000)
FORGERIES: dict[str, tuple[str, int, Callable[[], Sequence[Delivery]]]] = {
    "bytes that are no record": ("readable", 3, lambda: [*begun().records, BAD]),
    "an offset comes again": ("offsets_grow", 2, lambda: [*begun().records, begun().records[2]]),
    "a zombie writes": ("no_stale_epoch", 4, lambda: model(begun().taken_over(), epoch=0)),
    "an epoch that is no lease": ("epochs_are_leases", 3, lambda: model(begun(), epoch=1)),
    "an event before any lease": ("epochs_are_leases", 2, lambda: without(begun(), 0)),
    "a run that nobody asked for": ("requested_first", 3, lambda: again(begun(), 2, run_id=OTHER)),
    "a step after the end": ("one_end", 12, lambda: again(ended(), 3)),
    "a second end": ("one_end", 12, lambda: again(ended(), 11, status=Status.FAILED)),
    "a rejection on an open run": ("rejections_follow_the_end", 3, lambda: rejected(begun()).records),
    "a second start": ("one_start", 3, lambda: again(begun(), 2)),
    "a deadline of its own": ("deadline_as_requested", 2, lambda: forged(begun(), 2, deadline=7)),
    "a step before the start": ("start_before_steps", 3, lambda: without(asked(), 2)),
    "a gap in seq": ("seqs_without_gaps", 3, lambda: model(begun(), seq=2)),
    "a tool step with a model step's number": ("seqs_without_gaps", 5, lambda: tool(asked(), seq=1)),
    "the second call first": ("seqs_without_gaps", 5, lambda: tool(asked(), seq=3, tool_use_id="t2")),
    "an attempt is left out": ("attempts_without_gaps", 3, lambda: model(begun(), attempt=2)),
    "an answer is asked for again": ("no_start_after_the_result", 5, lambda: again(asked(), 3, attempt=2)),
    "a final failure is tried again": (
        "no_start_after_the_result", 5, lambda: again(begun().failed_model(Reason.MODEL_REQUEST), 3, attempt=2)
    ),
    "the same owner asks twice": ("one_attempt_at_a_time", 4, lambda: model(begun().started_model())),
    "a step after the final answer": ("last_answer_is_last", 11, lambda: model(answered())),
    "a suspended run takes a step": ("suspended_runs_wait", 4, lambda: model(begun().suspended(Reason.BUDGET))),
    "the stuck call begins": ("suspended_runs_wait", 8, lambda: tool(stuck(), attempt=2, epoch=6)),
    "a step beyond the cap": (
        "steps_within_the_cap", 3, lambda: model(given("go", max_steps=0).started())
    ),
    "a step beyond the ceiling": (
        "cost_below_the_ceiling", 5, lambda: model(begun().answers(text("…"), stop_reason="pause_turn", cost=Decimal(1)))
    ),
    "a model step with a call unanswered": (
        "turn_before_is_complete", 7, lambda: again(asked().started_tool("t1").started_tool("t2"), 3, seq=4)
    ),
    "a model step with an answer open": ("turn_before_is_complete", 4, lambda: model(begun().started_model(), seq=2, attempt=1)),
    "more than the budget leaves": (
        "budget_is_reserved", 5, lambda: model(begun().answers(text("…"), stop_reason="pause_turn", usage=SPENT))
    ),
    "a lost call is forgotten": (
        "budget_is_reserved",
        5,
        lambda: model(begun().started_model(9_000).taken_over(), reserved_tokens=1_001, attempt=2, epoch=4),
    ),
    "the prompt that comes again is forgotten": (
        "budget_is_reserved",
        5,
        lambda: model(begun().answers(text("…"), stop_reason="pause_turn", input_tokens=4_000), reserved_tokens=2_000),
    ),
    "nothing reserved": ("budget_is_reserved", 3, lambda: model(begun(), reserved_tokens=0)),
    "another conversation is sent": ("prefix_is_the_conversation", 3, lambda: model(begun(), prefix_digest="0" * 64)),
    "a tool of a truncated turn": (
        "truncated_calls_never_run", 5, lambda: tool(begun().answers(tool_use("t1", "look", {"n": 1}), stop_reason="max_tokens"))
    ),
    "a tool nobody asked for": ("calls_were_asked_for", 5, lambda: tool(asked(), tool_use_id="t3")),
    "another tool under its id": ("calls_were_asked_for", 5, lambda: tool(asked(), name="delete")),
    "another input": ("calls_were_asked_for", 5, lambda: tool(asked(), input_json='{"n":2}')),
    "a tool before the answer": ("calls_were_asked_for", 4, lambda: tool(begun().started_model())),
    "another key": ("one_key_per_call", 5, lambda: tool(asked(), idempotency_key=f"{RUN_ID}/1/t2")),
    "another key for the second attempt": (
        "one_key_per_call", 7,
        lambda: tool(asked().started_tool("t1").taken_over(), attempt=2, epoch=6, idempotency_key="2"),
    ),
    "what cannot be repeated is": (
        "unrepeatable_calls_run_once", 7,
        lambda: tool(asked().started_tool("t1", repeatable=False).taken_over(), attempt=2, epoch=6),
    ),
    "a result without a start": ("results_have_a_start", 4, lambda: without(asked(), 3)),
    "a result of another call": ("results_have_a_start", 6, lambda: forged(asked().finished_tool("t1"), 6, tool_use_id="t2")),
    "a second result": ("one_result_per_step", 7, lambda: again(asked().finished_tool("t1"), 6, content_json='"else"')),
    "a second answer": ("one_result_per_step", 5, lambda: again(asked(), 4)),
    "a failure comes twice": ("one_result_per_step", 5, lambda: again(begun().failed_model(Reason.API_ERROR, retry_in=1), 4)),
    "the answer of an attempt that died": (
        "results_are_of_the_open_attempt", 6,
        lambda: [*begun().started_model().taken_over().started_model().records, late()],
    ),
    "an end that is none": ("ends_have_a_final_status", 11, lambda: answered().finished(Status.RUNNING).records),
    "tokens left out": ("totals_are_sums", 11, lambda: forged(ended(), 11, usage=Usage())),
    "money left out": ("totals_are_sums", 11, lambda: forged(ended(), 11, cost=Decimal("0.001"))),
    "steps left out": ("totals_are_sums", 11, lambda: forged(ended(), 11, steps=3)),
    "success without an answer": ("success_has_an_answer", 7, lambda: asked().finished_tool("t1").finished().records),
    "another output": ("output_is_the_conversation", 11, lambda: forged(ended(), 11, output="else")),
    "cancelled by nobody": ("ending_command_exists", 3, lambda: begun().finished(Status.CANCELLED, Reason.CANCEL).records),
    "cancelled by another command": (
        "ending_command_exists", 4, lambda: begun().cancel_requested().finished(Status.CANCELLED, Reason.CANCEL, "c2").records
    ),
    "a running run is resumed": ("resumed_on_request", 4, lambda: resumed(begun()).records),
    "a run is resumed by nobody": ("resumed_on_request", 5, lambda: resumed(begun().suspended(Reason.BUDGET), "r2").records),
    "one command resumes twice": (
        "resumed_on_request", 7, lambda: again(resumed(begun().suspended(Reason.BUDGET)).suspended(Reason.BUDGET), 5)
    ),
    "a snapshot of another state": ("snapshots_are_the_fold", 5, lambda: snapshotted(asked(), output="else").records),
    "a snapshot that hides an event": ("snapshots_are_the_fold", 6, lambda: more(asked().started_tool("t1"), old_state())),
    "a snapshot that is none": ("snapshots_are_the_fold", 5, lambda: forged(snapshotted(asked()), 5, state_json="{}")),
    "the fold is of another mind": ("fold_agrees", 5, lambda: another_mind()),
}  # fmt: skip


def late() -> Record:
    answer = begun().answers(text("late")).records[-1]
    assert isinstance(answer.event, ModelStepCompleted)
    return replace(answer, offset=6, event=replace(answer.event, epoch=4))


def old_state() -> RunSnapshotted:
    event = snapshotted(asked()).records[-1].event
    assert isinstance(event, RunSnapshotted)
    return event


def another_mind() -> list[Delivery]:
    """A turn without text blocks' text is no turn to the fold, and its calls are well-formed to the audit."""
    content = '[{"type":"text"},{"type":"tool_use","id":"t1","name":"look","input":{"n":1}}]'
    return tool(begun().answers(content_json=content, stop_reason="tool_use"))


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_record_is_found(name: str) -> None:
    invariant, offset, log = FORGERIES[name]
    first = verify(log())[0]
    assert (first.invariant, first.offset) == (invariant, offset), first


def test_every_invariant_has_a_forgery() -> None:
    assert {invariant for invariant, _, _ in FORGERIES.values()} == NAMES


def test_every_invariant_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "verify-log.md").read_text()
    for check in all_checks():
        assert f"| `{name_of(check)}` | {sentence_of(check)} |" in page


@pytest.mark.parametrize("kind", [LeaseAcquired, RunRequested, RunStarted, ModelStepStarted, ModelStepCompleted, ToolStepStarted])
def test_no_record_of_these_can_be_taken_out_unseen(kind: type) -> None:
    """Of the release's log: what others build on is missed by what comes after it."""
    log = read_log((LOGS / "0.1.0.jsonl").read_text())
    for place, record in enumerate(log):
        followed = isinstance(record.event, LeaseAcquired) or any(_goes_on(later, record.event) for later in log[place + 1 :])
        if isinstance(record.event, kind) and followed:
            assert verify(log[:place] + log[place + 1 :]), record


def _goes_on(later: Record, event: Any) -> bool:
    kinds = (RunRequested, RunSuspended, CommandRejected)
    return not isinstance(later.event, (LeaseAcquired, *kinds)) and later.event.run_id == event.run_id


# ---- what is no violation, or not ours to judge


def test_one_fault_is_reported_once() -> None:
    """A record that readers ignore is ignored by the audit too, once it is reported."""
    history = asked().finished_tool("t1")
    first = history.records[-1].event
    assert isinstance(first, ToolStepFinished)
    second = replace(first, content_json='"else"')
    log = history.when(second).finished_tool("t2").answers(text("done")).finished()
    assert [violation.invariant for violation in verify(log.records)] == ["one_result_per_step"]


def test_runs_that_began_before_the_log_does_are_not_judged() -> None:
    """Retention took the beginning of the log, and the lease with it."""
    cut = [record for record in ended().records if record.offset >= 5]
    auditor = Auditor({0: 5})
    auditor.take(cut)
    assert auditor.violations == []
    assert verify(cut) != []


def test_records_of_some_runs_are_judged_without_their_leases() -> None:
    records = [record for record in ended().records if not isinstance(record.event, LeaseAcquired)]
    assert verify(records, leases=False) == []
    assert verify(records, leases=True)[0].invariant == "epochs_are_leases"


def test_a_run_with_a_record_from_the_future_is_not_judged_any_further() -> None:
    future = Unreadable(0, 3, 0, RUN_ID.encode(), b"\xc3\x01", Problem.UNKNOWN_SCHEMA, "no such schema")
    after = [replace(record, offset=record.offset + 4) for record in ended().records[6:]]
    log: list[Delivery] = [*begun().records, future, *after]
    assert [violation.invariant for violation in verify(log)] == ["readable"]


def test_a_clock_that_goes_back_is_a_warning() -> None:
    records = list(begun().records)
    records[2] = replace(records[2], timestamp=records[2].timestamp - BACKWARDS_MS - 100)
    auditor = Auditor()
    auditor.take(records)
    assert auditor.violations == []
    assert auditor.partitions[0].backwards == 1


def test_invariants_can_be_left_out() -> None:
    auditor = Auditor(leave_out=["readable"])
    auditor.take([*begun().records, BAD])
    assert auditor.violations == []


def test_what_is_kept_is_what_is_open() -> None:
    auditor = Auditor()
    auditor.take(ended().records)
    assert (auditor.partitions[0].open, auditor.partitions[0].ended) == ({}, 1)
