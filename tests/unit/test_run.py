"""The fold of one run: what each record makes of it, and which records it ignores."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext

import pytest

from runfold.core.conversation import extend_digest, user_text
from runfold.core.events import (
    CommandRejected,
    Event,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    Reason,
    Record,
    Rejection,
    RunFinished,
    RunRequested,
    Status,
    ToolStatus,
    ToolStepFinished,
    Usage,
)
from runfold.core.run import LAST_MS, ModelStep, Run, Verdict, evolve, fold
from runfold.testing.given import DEFINITION, RUN_ID, START_MS, STEP_MS, History, given, text, tool_use

STARTED = given().started()
ASKED = STARTED.answers(tool_use("a"), tool_use("b"))
ANSWERED = STARTED.answers(text("42"))


def ignores(history: History, *events: Event) -> None:
    """None of the events changes the run: the very same object remains."""
    assert history.when(*events).run is history.run


def last(history: History, kind: type[Event]) -> Event:
    return next(record.event for record in reversed(history.records) if isinstance(record.event, kind))


# ---- how a run begins


def test_a_run_begins_with_its_request() -> None:
    run = given("Which tickets?", token_budget=5).run
    assert (run.id, run.status, run.requested_at, run.first_offset) == (RUN_ID, Status.QUEUED, START_MS, 1)
    assert run.messages == (user_text("Which tickets?"),)


def test_r06_2_without_a_request_there_is_no_run() -> None:
    others = [record for record in ASKED.cancel_requested().finished().records if not isinstance(record.event, RunRequested)]
    assert fold(others) is None


def test_k09_2_a_second_request_never_changes_a_run() -> None:
    again = RunRequested(run_id=RUN_ID, agent="other", input="B")
    for history in (given(), STARTED, ASKED, ANSWERED, ANSWERED.finished(), STARTED.suspended(Reason.BUDGET)):
        ignores(history, again)
    assert given("A").when(again).started().messages == [{"role": "user", "content": [text("A")]}]


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_blank_input_ends_the_run_instead_of_being_refused_by_the_api(blank: str) -> None:
    run = given(blank).run
    assert run.messages == ()
    assert run.verdict is not None
    assert (run.verdict.status, run.verdict.reason) == (Status.FAILED, Reason.CONFIG)


def test_a_start_freezes_definition_and_deadline() -> None:
    run = given(timeout_ms=60_000).started(model="claude-x").run
    assert run.status is Status.RUNNING
    assert run.started is not None
    assert run.started.definition.model == "claude-x"
    assert run.deadline == START_MS + 60_000


def test_a_second_start_is_ignored() -> None:
    ignores(STARTED, given().started(model="other").records[-1].event)


def test_the_deadline_is_the_one_that_the_start_recorded_whatever_todays_default_is() -> None:
    start = STARTED.run.started
    assert start is not None
    assert given().when(replace(start, deadline=START_MS + 7)).run.deadline == START_MS + 7


def test_a_deadline_is_never_later_than_a_record_can_say() -> None:
    """Anyone may produce a request with any number; the start that repeats it must be writable."""
    assert given(timeout_ms=2**63 - 1).run.deadline == LAST_MS


def test_a_step_before_the_start_is_ignored() -> None:
    ignores(given(), STARTED.started_model().records[-1].event)


# ---- model steps


def test_an_answer_counts_once() -> None:
    assert ANSWERED.run.usage == Usage(input_tokens=10, output_tokens=5)
    ignores(ANSWERED, last(ANSWERED, ModelStepCompleted))


def test_an_answer_of_another_attempt_is_ignored() -> None:
    """A worker that was taken for dead answers late: the attempt that is open in the log is another one."""
    late = STARTED.started_model().answers(text("late")).records[-1].event
    ignores(STARTED.started_model().taken_over().started_model(), late)
    ignores(STARTED.failed_model(Reason.OVERLOADED, retry_in=5), late)


def test_attempts_are_counted_and_never_go_back() -> None:
    twice = STARTED.started_model().taken_over().started_model()
    assert twice.run.step == ModelStep(1, attempt=2, open=True, reserved=4096, reserved_cost=None)
    ignores(twice, twice.records[-1].event, STARTED.started_model().records[-1].event)


def test_a_failed_attempt_waits_for_its_time() -> None:
    history = STARTED.failed_model(Reason.OVERLOADED, retry_in=5_000, usage=Usage(input_tokens=7))
    failed = ModelStep(1, attempt=1, failures=1, overloads=1, retry_at=history.now - STEP_MS + 5_000)
    assert history.run.step == replace(failed, wasted=7, wasted_cost=None)
    assert history.run.verdict is None
    assert history.started_model().run.step.retry_at is None


def test_a04_4_tokens_of_a_failed_attempt_are_kept_apart() -> None:
    run = STARTED.failed_model(Reason.OVERLOADED, retry_in=5, usage=Usage(input_tokens=7)).answers(text("x")).run
    assert (run.usage.total, run.wasted.total, run.spent) == (15, 7, 22)


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.OVERLOADED, Status.FAILED), (Reason.MODEL_REQUEST, Status.FAILED), (Reason.MODEL_ACCESS, Status.SUSPENDED)],
)
def test_a_failure_for_good_ends_the_run_or_waits_for_an_operator(reason: Reason, status: Status) -> None:
    assert STARTED.failed_model(reason).run.verdict == Verdict(status, reason, f"the model said {reason}")


def test_the_conversation_grows_by_each_answer_and_its_results() -> None:
    history = ASKED.finished_tool("b", "2").finished_tool("a", "1").answers(text("done"))
    assert history.messages == [
        {"role": "user", "content": [text("go")]},
        {"role": "assistant", "content": [tool_use("a"), tool_use("b")]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                {"type": "tool_result", "tool_use_id": "b", "content": "2"},
            ],
        },
        {"role": "assistant", "content": [text("done")]},
    ]


def test_r8_the_digest_covers_definition_and_messages() -> None:
    run = ASKED.finished_tool("a").finished_tool("b").run
    digest = DEFINITION.hash
    for message in run.messages:
        digest = extend_digest(digest, message)
    assert run.digest == digest
    assert given().started(hash="1" * 64).run.digest != STARTED.run.digest


# ---- what each stop_reason means


def ends_with(history: History) -> tuple[Status, Reason] | None:
    verdict = history.run.verdict
    return None if verdict is None else (verdict.status, verdict.reason)


@pytest.mark.parametrize("stop_reason", ["end_turn", "stop_sequence"])
def test_a_final_answer_succeeds(stop_reason: str) -> None:
    history = STARTED.answers(text("4"), text("2"), stop_reason=stop_reason)
    assert ends_with(history) == (Status.SUCCEEDED, Reason.FINAL_ANSWER)
    assert history.run.output == "42"


def test_c06_1_an_empty_final_answer_succeeds_with_empty_output() -> None:
    history = STARTED.answers(tool_use("a")).finished_tool("a").answers()
    assert ends_with(history) == (Status.SUCCEEDED, Reason.FINAL_ANSWER)
    assert history.run.output == ""
    assert len(history.messages) == 3, "an empty message is refused by the API"


def test_c06_3_an_empty_final_answer_leaves_what_was_said_before() -> None:
    history = STARTED.answers(text("The answer is 42"), tool_use("note")).finished_tool("note").answers()
    assert history.run.output == "The answer is 42"


def test_c08_1_a_pause_is_continued_with_the_content_as_it_is() -> None:
    paused = [text("Searching"), {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}]
    history = STARTED.answers(*paused, stop_reason="pause_turn")
    assert ends_with(history) is None
    assert history.messages[1:] == [{"role": "assistant", "content": paused}]
    assert (history.run.calls, history.run.step) == ((), ModelStep(2))
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    assert history.answers(found, text("Found")).run.output == "Found"


@pytest.mark.parametrize("content", [[], [text("")]])
def test_c08_a_pause_without_content_fails_instead_of_asking_the_same_again(content: list[dict[str, object]]) -> None:
    assert ends_with(STARTED.answers(*content, stop_reason="pause_turn")) == (Status.FAILED, Reason.INVALID_MODEL_RESPONSE)


@pytest.mark.parametrize("stop_reason", ["end_turn", "stop_sequence", "pause_turn"])
def test_a_tool_call_that_nobody_waits_for_fails_closed(stop_reason: str) -> None:
    """Continued, it would be a tool_use without its result, which the API refuses; as an answer it would be half of one."""
    history = STARTED.answers(text("x"), tool_use("a"), stop_reason=stop_reason)
    assert ends_with(history) == (Status.FAILED, Reason.INVALID_MODEL_RESPONSE)
    assert history.run.calls == ()


def test_tool_use_without_a_call_fails() -> None:
    assert ends_with(STARTED.answers(text("x"), stop_reason="tool_use")) == (Status.FAILED, Reason.INVALID_MODEL_RESPONSE)


@pytest.mark.parametrize(
    "content",
    [[tool_use("a", "write", {"path": "/a"})], [tool_use("a"), tool_use("b")], [text("half an ans")], [], [{"type": 5}]],
)
def test_c07_1_a_truncated_answer_is_paid_and_discarded(content: list[dict[str, object]]) -> None:
    history = STARTED.answers(*content, stop_reason="max_tokens", output_tokens=4096)
    assert ends_with(history) is None
    assert (history.run.calls, history.run.messages) == ((), STARTED.run.messages)
    assert (history.run.truncated, history.run.usage.output_tokens, history.run.step) == (1, 4096, ModelStep(2))
    assert history.answers(text("whole")).run.truncated == 0


def test_c09_what_cannot_be_continued_has_three_distinct_reasons() -> None:
    outcomes = {
        ends_with(STARTED.answers(stop_reason="refusal")),
        ends_with(STARTED.answers(text("half"), stop_reason="model_context_window_exceeded")),
        ends_with(STARTED.answers(text("x"), stop_reason="brand_new")),
    }
    assert outcomes == {
        (Status.FAILED, Reason.REFUSAL),
        (Status.FAILED, Reason.CONTEXT_WINDOW),
        (Status.SUSPENDED, Reason.UNKNOWN_STOP_REASON),
    }


def test_c09_3_a_refusal_keeps_earlier_steps_and_counts_its_tokens() -> None:
    history = STARTED.answers(tool_use("a")).finished_tool("a").answers(text("No"), stop_reason="refusal", output_tokens=3)
    assert ends_with(history) == (Status.FAILED, Reason.REFUSAL)
    assert (len(history.run.messages), history.run.usage.output_tokens, history.run.output) == (3, 8, "")


def test_c09_2_the_stop_reason_is_shown() -> None:
    verdict = STARTED.answers(stop_reason="x" * 5_000).run.verdict
    assert verdict is not None
    assert "xxx" in verdict.detail
    assert len(verdict.detail) < 500


@pytest.mark.parametrize(
    ("status", "error_type", "detail"),
    [
        (400, "invalid_request_error", "400 invalid_request_error: the model said MODEL_REQUEST"),
        (404, None, "404: the model said MODEL_REQUEST"),
        (None, "not_connected", "the model said MODEL_REQUEST"),
    ],
)
def test_a01_the_verdict_on_a_failed_call_shows_what_the_api_answered(
    status: int | None, error_type: str | None, detail: str
) -> None:
    failed = STARTED.failed_model(Reason.MODEL_REQUEST).records[-1]
    assert isinstance(failed.event, ModelStepFailed)
    event = replace(failed.event, http_status=status, error_type=error_type)
    run = evolve(STARTED.started_model().run, replace(failed, event=event))
    assert run is not None
    assert run.verdict is not None
    assert run.verdict.detail == detail


def test_a_refusal_of_odd_content_is_a_refusal() -> None:
    history = STARTED.answers(stop_reason="refusal", content_json="no JSON", stop_details_json='{"category":"cyber"}')
    assert ends_with(history) == (Status.FAILED, Reason.REFUSAL)
    assert history.run.verdict is not None
    assert "cyber" in history.run.verdict.detail


def test_c04_1_an_answer_that_breaks_the_rules_is_paid_and_ends_the_run() -> None:
    history = STARTED.answers(tool_use("call_0", input_={"n": 1}), tool_use("call_0", input_={"n": 2}))
    assert ends_with(history) == (Status.FAILED, Reason.INVALID_MODEL_RESPONSE)
    assert (history.run.usage.total, history.run.calls, len(history.run.messages)) == (15, (), 1)


# ---- tool steps


def test_calls_take_the_seqs_after_their_model_step() -> None:
    assert [(call.seq, call.model_seq, call.id) for call in ASKED.run.calls] == [(2, 1, "a"), (3, 1, "b")]
    assert ASKED.run.step == ModelStep(4)


def test_steps_are_counted_when_they_begin() -> None:
    second_first = ASKED.started_tool("b")
    histories = STARTED, ASKED, second_first, second_first.started_tool("a")
    assert [history.run.steps for history in histories] == [0, 1, 3, 3]


def test_the_first_result_of_a_call_stands_for_ever() -> None:
    history = ASKED.finished_tool("a", "first")
    event = last(history, ToolStepFinished)
    assert isinstance(event, ToolStepFinished)
    ignores(history, replace(event, content_json='"second"'), replace(event, attempt=2, content_json='"third"'))


def test_a_result_of_an_attempt_that_is_not_open_is_ignored() -> None:
    never = ASKED.finished_tool("b").records[-1].event
    ignores(ASKED, never)
    ignores(ASKED.started_tool("b").taken_over().started_tool("b"), never)


def test_c04_2_the_same_id_in_two_turns_is_two_calls() -> None:
    history = STARTED.answers(tool_use("call_0", input_={"n": 1})).finished_tool("call_0", "one")
    stale = last(history, ToolStepFinished)
    history = history.answers(tool_use("call_0", input_={"n": 2}))
    ignores(history.started_tool("call_0"), stale)
    history = history.finished_tool("call_0", "two").answers(text("done"))
    shown = [message["content"][0].get("content") for message in history.messages if message["role"] == "user"]
    assert shown == [None, "one", "two"]


@pytest.mark.parametrize("status", [ToolStatus.ERROR, ToolStatus.TIMED_OUT, ToolStatus.DENIED])
def test_r5_whatever_did_not_work_is_an_error_for_the_model(status: ToolStatus) -> None:
    history = STARTED.answers(tool_use("a")).finished_tool("a", "no", status)
    assert history.messages[-1]["content"] == [{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}]


# ---- commands


def test_a_cancel_waits_until_the_event_that_names_it() -> None:
    history = ASKED.cancel_requested("c1").cancel_requested("c2")
    assert [command.command_id for command in history.run.inbox] == ["c1", "c2"]
    assert history.run.status is Status.RUNNING
    done = history.finished(Status.CANCELLED, Reason.CANCEL, command_id="c1")
    assert [command.command_id for command in done.run.inbox] == ["c2"]


def test_b02_1_the_same_cancel_twice_is_one() -> None:
    history = ASKED.cancel_requested("c1", "alice")
    ignores(history, history.records[-1].event, ASKED.cancel_requested("c1", "bob").records[-1].event)


def test_records_that_are_about_no_run_change_none() -> None:
    ignores(
        ASKED,
        LeaseAcquired(partition=0, worker="w", build="b"),
        CommandRejected(run_id=RUN_ID, epoch=0, command_id="c1", reason=Rejection.RUN_FINISHED),
    )


# ---- suspended, finished


def test_a_suspended_run_says_what_it_waits_for() -> None:
    run = ASKED.started_tool("a").suspended(Reason.OUTCOME_UNKNOWN, "a").run
    assert (run.status, run.reason, run.waiting_tool_use_id, run.verdict) == (Status.SUSPENDED, Reason.OUTCOME_UNKNOWN, "a", None)


def test_a_suspension_that_is_said_twice_is_one() -> None:
    history = ASKED.suspended(Reason.OUTCOME_UNKNOWN, "a")
    ignores(history, history.records[-1].event)
    assert history.suspended(Reason.OUTCOME_UNKNOWN, "b").run.waiting_tool_use_id == "b"


def test_a_suspension_for_a_new_failure_is_no_repeat_of_the_old_one() -> None:
    """Else the failure would stay undecided, and the suspension be written for ever."""
    history = STARTED.failed_model(Reason.MODEL_ACCESS).suspended(Reason.MODEL_ACCESS).failed_model(Reason.MODEL_ACCESS)
    assert history.run.verdict is not None
    assert history.suspended(Reason.MODEL_ACCESS).run.verdict is None


def test_t07_4_other_calls_of_a_suspended_run_still_end() -> None:
    history = ASKED.started_tool("a", repeatable=False).started_tool("b")
    history = history.suspended(Reason.OUTCOME_UNKNOWN, "a").finished_tool("b")
    assert [(call.id, call.status) for call in history.run.calls] == [("a", None), ("b", ToolStatus.DONE)]
    assert history.run.status is Status.SUSPENDED


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT])
def test_o1_nothing_changes_a_run_that_has_ended(status: Status) -> None:
    open_ = ASKED.started_tool("a")
    ended = open_.finished(status, Reason.FINAL_ANSWER)
    assert (ended.run.status, ended.run.finished_at) == (status, ended.now)
    later = open_.finished_tool("a").finished_tool("b").answers(text("x")).cancel_requested().suspended(Reason.BUDGET).finished()
    ignores(ended, *(record.event for record in later.records))


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.SUSPENDED])
def test_an_end_that_is_none_is_ignored(status: Status) -> None:
    """Else a run would go on with an end time, or be QUEUED for ever."""
    event = last(ANSWERED.finished(), RunFinished)
    assert isinstance(event, RunFinished)
    ignores(ANSWERED, replace(event, status=status))


# ---- sums


U1 = Usage(input_tokens=3, cache_write_5m_tokens=12_304, output_tokens=550)
U2 = Usage(input_tokens=100, cache_write_5m_tokens=700, cache_read_tokens=200)


def test_b06_1_cached_tokens_count_once() -> None:
    assert (U1.total, U2.total, (U1 + U2).total) == (12_857, 1_000, 13_857)


def test_b06_3_a_thousand_costs_add_up_exactly_whatever_a_tool_did_to_its_decimal_context() -> None:
    history = given(max_steps=10_000).started()
    pause = json.dumps([text("…")])
    with localcontext(prec=3):
        for _ in range(1_000):
            history = history.answers(content_json=pause, stop_reason="pause_turn", usage=U1, cost=Decimal("0.054399"))
    assert history.run.cost == Decimal("54.399")
    assert history.run.usage.total == 12_857_000


def test_b08_a_cost_that_is_once_unknown_stays_unknown() -> None:
    history = STARTED.answers(tool_use("a"), cost=None).finished_tool("a").answers(text("x"), cost=Decimal(1))
    assert history.run.cost is None


# ---- the fold itself


def test_last_offset_and_time_are_those_of_the_last_record_that_changed_the_run() -> None:
    history = ASKED.started_tool("a")
    ignored = history.taken_over().when(history.records[-1].event)
    assert (ignored.run.last_offset, ignored.run.last_at) == (history.records[-1].offset, history.now)


def test_times_are_taken_as_they_come() -> None:
    """S07: a broker's clock may be set back between two records."""
    finish = ANSWERED.after(-3_600_000).finished().run
    assert finish.finished_at is not None
    assert finish.finished_at < START_MS


def test_a_long_run_folds_as_fast_per_record_as_a_short_one(count_calls: Callable[[str], int]) -> None:
    """Each record hashes and parses what it adds, never what was there: 40 answers cost 40 readings."""
    history = given(max_steps=1_000).started()
    for n in range(20):
        history = history.answers(text(str(n)), tool_use(f"t{n}")).finished_tool(f"t{n}", str(n))
    run: Run | None = None
    for record in history.records:
        run = evolve(run, record)
    assert run == history.run
    assert count_calls("extend_digest") == 2 * (1 + 20 + 20)


@pytest.fixture
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    from runfold.core import conversation

    counts = {"extend_digest": 0}
    real = conversation.extend_digest

    def counted(digest: str, message: conversation.Message) -> str:
        counts["extend_digest"] += 1
        return real(digest, message)

    monkeypatch.setattr(conversation, "extend_digest", counted)
    return counts.__getitem__


def test_fold_is_evolve_over_all_records() -> None:
    records = ASKED.finished_tool("a").finished_tool("b").answers(text("x")).finished().records
    run: Run | None = None
    for record in records:
        run = evolve(run, record)
    assert fold(records) == run
    assert fold([]) is None
    assert fold([Record(records[0].event, 0, 0, 0)]) is None
