"""What a worker tells people and Prometheus: one line per step, JSON off a terminal, a bounded number of series (O9, T05.2)."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from runfold.core.errors import Fenced
from runfold.core.events import Problem, Reason, Record, RunEvent, Status, ToolStatus, Unreadable, Usage
from runfold.core.run import Run, evolve
from runfold.core.shard import Ignored
from runfold.ports import Failover
from runfold.telemetry.logs import LogFormat, speak
from runfold.telemetry.metrics import MOST_LABELS, OTHER, WorkerMetrics
from runfold.telemetry.watch import Watch
from runfold.testing import History, given
from runfold.testing.given import DEFINITION, RUN_ID, text, tool_use

MODEL = DEFINITION.model


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def speaking() -> Iterator[Callable[[LogFormat, io.StringIO], io.StringIO]]:
    """`speak` into a stream, undone at the end: it changes the whole process."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook, sys.unraisablehook, threading.excepthook
    with warnings.catch_warnings():

        def start(log_format: LogFormat, stream: io.StringIO) -> io.StringIO:
            speak(log_format, "worker-A", stream=stream)
            return stream

        yield start
        logging.captureWarnings(False)
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    sys.excepthook, sys.unraisablehook, threading.excepthook = before[2:]


def ecs(stream: io.StringIO) -> list[dict[str, Any]]:
    """The objects of a log stream: one per line, or it fails (O9)."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Observed:
    """A watch that is shown a history, record by record."""

    def __init__(self, worker: str = "worker-A") -> None:
        self.registry = CollectorRegistry()
        self.watch = Watch(worker, WorkerMetrics(self.registry))

    def shown(self, history: History) -> "Observed":
        run: Run | None = None
        for record in history.records:
            run = evolve(run, record)
            if run is not None:
                self.watch.applied(record, run)
        return self

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    @property
    def exported(self) -> str:
        return generate_latest(self.registry).decode()


def story() -> History:
    """The run of the first page: a model step, a tool step, a model step."""
    history = given("Which acme tickets are overdue?").started()
    history = history.answers(tool_use("toolu_01Ab", "list_tickets"), input_tokens=812, output_tokens=64)
    history = history.finished_tool("toolu_01Ab").answers(text("None."), input_tokens=1210, output_tokens=140)
    return history.finished()


# ---- lines


def test_one_line_per_step_as_people_read_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Observed().shown(story())
    assert caplog.messages == [
        "worker-A run=6f1c0a52 QUEUED agent=assistant",
        "worker-A run=6f1c0a52 seq=1 MODEL stop=tool_use in=812 out=64 latency=10ms",
        "worker-A run=6f1c0a52 seq=2 TOOL list_tickets id=toolu_01Ab started",
        "worker-A run=6f1c0a52 seq=2 TOOL list_tickets id=toolu_01Ab done 10ms",
        "worker-A run=6f1c0a52 seq=3 MODEL stop=end_turn in=1210 out=140 latency=10ms",
        "worker-A run=6f1c0a52 SUCCEEDED tokens=2226",
    ]


def test_what_goes_wrong_says_why_and_what_comes_next(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    history = given().started().failed_model(Reason.OVERLOADED, retry_in=1500).failed_model(Reason.MODEL_ACCESS)
    Observed().shown(history.suspended(Reason.MODEL_ACCESS).cancel_requested().finished(Status.CANCELLED, Reason.CANCEL))
    assert caplog.messages[1:] == [
        "worker-A run=6f1c0a52 seq=1 MODEL attempt 1 failed OVERLOADED: the model said OVERLOADED; retry in 1490ms",
        "worker-A run=6f1c0a52 seq=1 MODEL attempt 2 failed MODEL_ACCESS: the model said MODEL_ACCESS; final",
        "worker-A run=6f1c0a52 SUSPENDED reason=MODEL_ACCESS model_access",
        "worker-A run=6f1c0a52 CANCELLED tokens=0 reason=CANCEL",
    ]


def test_a_tool_that_fails_says_why_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    history = given().started().answers(tool_use("a", "boom"), tool_use("b", "boom"))
    history = history.finished_tool("a", "KeyError: 'x'", ToolStatus.ERROR).finished_tool("b", "y" * 999, ToolStatus.ERROR)
    Observed().shown(history)
    ended = [message for message in caplog.messages if " error " in message]
    assert ended[0] == "worker-A run=6f1c0a52 seq=2 TOOL boom id=a error 10ms: KeyError: 'x'"
    assert ended[1].endswith("error 10ms: " + "y" * 300 + "…")


def test_a_run_that_came_from_another_worker_says_where_it_stands(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observed = Observed("worker-B")
    between = given().started().answers(tool_use("a"), tool_use("b")).finished_tool("a")
    observed.watch.resumed(between.run)
    assert caplog.messages == ["worker-B run=6f1c0a52 resumed at seq=3"], "the call of seq 2 has ended"
    assert observed.sample("runfold_runs_resumed_total") == 1


def test_a_run_that_waits_for_a_person_is_not_said_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Observed("worker-B").watch.resumed(given().started().suspended(Reason.BUDGET).run)
    assert caplog.messages == ["worker-B run=6f1c0a52 taken over, SUSPENDED BUDGET"]


def test_foreign_text_breaks_no_line_and_fills_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    history = given(agent="a\nb\x1b[31m" + "x" * 100_000).started()
    history = history.answers(tool_use("id\n" + "x" * 100_000, "na\rme\u2028" + "x" * 100_000))
    history = history.finished_tool(history.run.calls[0].id)
    Observed().shown(history.answers(text("done"), stop_reason="new\n" + "x" * 100_000))
    assert len(caplog.messages) == 5
    assert all(message.isprintable() for message in caplog.messages)
    assert max(map(len, caplog.messages)) < 1000


# ---- streams


def test_off_a_terminal_each_line_is_one_ecs_object(speaking: Callable[..., io.StringIO]) -> None:
    """O9, with run and seq on every line of a step."""
    stream = speaking("auto", io.StringIO())
    Observed().shown(story())
    lines = ecs(stream)
    assert len(lines) == 6
    for line in lines:
        assert {"@timestamp", "log.level", "message", "ecs.version"} <= line.keys()
        assert line["service"]["name"] == "worker-A"
        assert line["runfold"]["run"]["id"] == RUN_ID
    assert [line["runfold"].get("step", {}).get("seq") for line in lines] == [None, 1, 2, 2, 3, None]


def test_on_a_terminal_a_line_is_for_people(speaking: Callable[..., io.StringIO]) -> None:
    stream = speaking("auto", Terminal())
    Observed().shown(story())
    assert stream.getvalue().splitlines()[-1] == "worker-A run=6f1c0a52 SUCCEEDED tokens=2226"
    logging.getLogger("runfold.worker").warning("something")
    assert stream.getvalue().splitlines()[-1] == "WARNING runfold.worker: something"


def test_whatever_is_raised_or_warned_is_one_object_too(speaking: Callable[..., io.StringIO]) -> None:
    """O9: "Traceback" only inside a JSON field, also where Python itself would print one."""
    stream = speaking("ecs", io.StringIO())
    try:
        raise ValueError("line one\nline two")
    except ValueError as error:
        logging.getLogger("runfold").exception("it failed:\n%s", error)
        sys.excepthook(type(error), error, error.__traceback__)
        unraisable: Any = SimpleNamespace(
            exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None, object=None
        )
        sys.unraisablehook(unraisable)
    warnings.warn("mind the gap", UserWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: 1 // 0, name="a tool's own")
    thread.start()
    thread.join()
    lines = ecs(stream)
    assert len(lines) == 5
    assert [line["error"]["type"] for line in lines if "error" in line] == [*["ValueError"] * 3, "ZeroDivisionError"]
    assert all(line["error"]["stack_trace"] for line in lines if "error" in line)
    assert not any("Traceback" in line["message"] for line in lines)


# ---- numbers


def test_tokens_cost_and_latency_are_counted() -> None:
    usage = Usage(input_tokens=1, output_tokens=2, cache_write_5m_tokens=3, cache_write_1h_tokens=4, cache_read_tokens=5)
    history = given().started().failed_model(Reason.OVERLOADED, retry_in=10, usage=Usage(input_tokens=999))
    history = history.answers(tool_use("a"), usage=usage, cost=Decimal("0.25")).finished_tool("a", status=ToolStatus.ERROR)
    observed = Observed().shown(history.answers(text("done"), usage=Usage(), cost=None).finished())
    counted = {
        direction: observed.sample("agent_tokens_total", model=MODEL, direction=direction)
        for direction in ("input", "output", "cache_write_5m", "cache_write_1h", "cache_read")
    }
    assert counted == {"input": 1, "output": 2, "cache_write_5m": 3, "cache_write_1h": 4, "cache_read": 5}, "without the waste"
    assert observed.sample("agent_cost_usd_total", model=MODEL) == 0.25
    assert observed.sample("agent_unpriced_answers_total", model=MODEL) == 1
    for kind, outcome, times in (("model", "done", 2), ("model", "overloaded", 1), ("tool", "error", 1)):
        assert observed.sample("agent_step_latency_seconds_count", kind=kind, outcome=outcome) == times
    assert observed.sample("agent_step_latency_seconds_sum", kind="tool", outcome="error") == 0.01
    assert observed.sample("runfold_runs_ended_total", status="SUCCEEDED", reason="FINAL_ANSWER") == 1


def test_t05_2_no_input_of_anybody_makes_the_number_of_series_grow() -> None:
    observed = Observed()
    for number in range(10 * MOST_LABELS):
        name = f"invented_{number}"
        history = given(agent=name).started().answers(tool_use(f"id_{number}", name), stop_reason="tool_use")
        event: Any = history.records[-1].event
        answered = Record(_with(event, model=f"model-{number}", stop_reason=name), 0, 99, 0)
        observed.shown(history)
        observed.watch.applied(answered, history.run)
    exported = observed.exported
    models = {line.split('model="')[1].split('"')[0] for line in exported.splitlines() if 'model="' in line}
    assert len(models) <= MOST_LABELS + 1
    assert OTHER in models
    assert "invented" not in exported
    assert RUN_ID not in exported, "a run id is never a label"


def _with(event: RunEvent, **changes: Any) -> Any:
    return replace(event, **changes)


def test_a_name_of_any_length_is_no_label() -> None:
    observed = Observed()
    history = given().started(model="m" * 5000)
    event: Any = history.answers(text("done")).records[-1].event
    observed.watch.applied(Record(_with(event, model="m" * 5000), 0, 9, 0), history.run)
    assert "mmmm" not in observed.exported


def test_the_lease_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observed = Observed()
    watch = observed.watch
    watch.acquired(3, 77, 500, 0.05)
    watch.acquired(4, 78, 0, 0.05)
    watch.reset(3, Fenced("a newer owner"))
    watch.committed(3, 7, 0.002, 0.001)
    watch.released(4)
    record = story().records[0]
    watch.ignored(record, Ignored.STALE_EPOCH)
    watch.unreadable(Unreadable(3, 9, 0, None, b"?", Problem.MALFORMED, "not\nAvro"))
    watch.count_runs([given().run, given().started().run, given().started().run])
    assert caplog.messages == [
        "worker-A owns partition 3, epoch 77, after 50 ms",
        "worker-A owns partition 4, epoch 78, after 50 ms",
        "worker-A let go of partition 4",
        "worker-A ignored LeaseAcquired at 0/0: stale_epoch",
        "worker-A cannot read 3/9: MALFORMED: not Avro",
    ]
    expected = {
        "runfold_partitions_owned": 1,
        "runfold_folded_records_total": 500,
        "runfold_takeover_seconds_count": 2,
        "runfold_committed_events_total": 7,
        "runfold_commit_seconds_count": 1,
        "runfold_echo_seconds_count": 1,
    }
    assert {name: observed.sample(name) for name in expected} == expected
    assert observed.sample("runfold_lease_resets_total", cause="Fenced") == 1
    assert observed.sample("runfold_ignored_records_total", why="stale_epoch") == 1
    assert observed.sample("runfold_unreadable_records_total", problem="MALFORMED") == 1
    assert [observed.sample("runfold_runs_open", status=status) for status in ("QUEUED", "RUNNING", "SUSPENDED")] == [1, 2, 0]


def test_a_takeover_says_how_long_it_took_and_how_long_nobody_was_there() -> None:
    observed = Observed()
    observed.watch.took_over(3, 0.02, None)
    observed.watch.took_over(4, 0.03, Failover("death", 0.25))
    observed.watch.took_over(5, 0.03, Failover("last_event", 6.5))
    assert observed.sample("runfold_fold_seconds_count") == 3
    assert observed.sample("runfold_failover_seconds_sum", since="death") == 0.25
    assert observed.sample("runfold_failover_seconds_sum", since="last_event") == 6.5


def test_tokens_are_paid_twice_by_a_step_whose_owner_died_and_by_no_other() -> None:
    """Two owners died in attempts 1 and 3; attempt 2 failed by itself, and what it took is known elsewhere."""
    usage = Usage(input_tokens=100, output_tokens=20)
    lost = given().started().started_model().failed_model(Reason.OVERLOADED, retry_in=0).started_model().started_model()
    assert (lost.run.step.attempt, lost.run.step.failures) == (3, 1)
    observed = Observed()
    observed.watch.resumed(lost.run)
    again = lost.started_model().answers(tool_use("a"), usage=usage)
    later = again.finished_tool("a").answers(text("done"), usage=usage)
    for record in later.records[len(lost.records) :]:
        observed.watch.applied(record, later.run)
    assert observed.sample("runfold_model_calls_repeated_total") == 1
    assert observed.sample("runfold_tokens_paid_twice_total", model=MODEL) == 2 * 120
    assert not observed.watch._lost


def test_tokens_are_paid_twice_too_by_a_step_that_was_aborted_for_a_planned_stop() -> None:
    lost = given().started().started_model().aborted()
    observed = Observed()
    observed.watch.resumed(lost.run)
    again = lost.taken_over().started_model().answers(text("done"), usage=Usage(input_tokens=100, output_tokens=20))
    for record in again.records[len(lost.records) + 1 :]:
        observed.watch.applied(record, again.run)
    assert observed.sample("runfold_model_calls_repeated_total") == 1
    assert observed.sample("runfold_tokens_paid_twice_total", model=MODEL) == 120


def test_a_step_that_is_not_started_again_costs_nothing_twice() -> None:
    lost = given().started().started_model()
    observed = Observed()
    observed.watch.resumed(lost.run)
    ended = lost.cancel_requested().finished(Status.CANCELLED, Reason.CANCEL)
    for record in ended.records[len(lost.records) :]:
        observed.watch.applied(record, ended.run)
    assert observed.sample("runfold_model_calls_repeated_total") == 0
    assert not observed.watch._lost


def test_late_results_are_counted_by_what_made_them_late() -> None:
    observed = Observed()
    answer = given().started().answers(text("done")).records[-1]
    observed.watch.ignored(answer, Ignored.STALE_EPOCH)
    observed.watch.ignored(given().cancel_requested().records[-1], Ignored.AFTER_END)  # a command is no result
    event: Any = answer.event
    observed.watch.late(RUN_ID, event)
    for why in ("stale_epoch", "dropped"):
        assert observed.sample("runfold_late_results_total", kind="model", why=why) == 1
    assert observed.sample("runfold_late_results_total", kind="tool", why="after_end") is None


def test_dead_letters_are_counted_by_problem_and_by_what_they_say_they_are() -> None:
    """K07.2: a misrouted command is not forwarded but dead-lettered, and counted."""
    observed = Observed()
    letter = Unreadable(3, 9, 0, None, b"?", Problem.MISROUTED, "", b"RunCancelRequested")
    observed.watch.buried(letter)
    observed.watch.buried(replace(letter, from_owner=True, type_header=b"ToolStepFinished"))
    observed.watch.buried(replace(letter, problem=Problem.MALFORMED, type_header=b"anything " * 100))
    for problem, kind in (("MISROUTED", "command"), ("MISROUTED", "event"), ("MALFORMED", "other")):
        assert observed.sample("runfold_dead_letters_total", problem=problem, kind=kind) == 1


def test_a_run_that_leaves_with_its_partition_leaves_nothing_behind() -> None:
    """Names of tool calls under way are kept for the line that ends them; what moves on to another worker must not stay."""
    observed = Observed()
    observed.watch.acquired(0, 1, 0, 0.0)
    observed.shown(given().started().answers(tool_use("a")).started_tool("a"))
    observed.watch.resumed(given().started().started_model().run)
    assert observed.watch._tools
    assert observed.watch._lost
    observed.watch.released(0)
    assert not observed.watch._tools
    assert not observed.watch._lost
