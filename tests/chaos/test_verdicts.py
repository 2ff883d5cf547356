"""Each verdict of the chaos checks is broken once, by a log or a ledger that it must not let pass."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from runfold.config import Settings
from runfold.core.events import (
    CommandRejected,
    LeaseAcquired,
    ModelStepStarted,
    Problem,
    Reason,
    Record,
    Rejection,
    RunRequested,
    Status,
    Unreadable,
)
from runfold.testing.given import RUN_ID, History, given, text, tool_use
from tests.chaos import effects, ground, kills, ledger, orders
from tests.chaos.effects import begun_without_lease
from tests.chaos.figures import Report, Verdict, percentile
from tests.chaos.ground import Ground
from tests.chaos.ledger import Act
from tests.chaos.load import Load, Plan
from tests.chaos.verdicts import acts_without_lease, all_succeeded, no_answer_paid_twice

WORKER, OTHER = "worker-1", "worker-2"
PID = 11
SUCCESS = given("go").started().answers(text("done")).finished()


@pytest.fixture
async def field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    """A ground with one partition, no broker and no processes: what happens there is told to it by `saw` and `did`."""
    for module in (ground, kills):
        monkeypatch.setattr(module, "PATIENCE", 0.0)
    field = Ground(Settings(), 1, tmp_path, Random(1), {})
    field.load = Load(Plan(1, 1, 0.0, 0.0), 1, AsyncMock(), field.draw, field.watcher.finished.keys())
    field.load.flowing = False
    yield field
    await field.processes.close()


def saw(field: Ground, history: History, since: int = 0, at: float = 1.0) -> None:
    """The watcher reads the records from this offset on."""
    for record in history.records[since:]:
        field.watcher._take(record, at)


def did(field: Ground, *acts: str) -> None:
    """Lines of the ledger."""
    with field.ledger.path.open("a") as file:
        file.writelines(f"{act}\n" for act in acts)


def call(request: str, seq: int = 1, pid: int = PID, attempt: int = 1) -> Act:
    return Act(0.0, pid, "call", (RUN_ID, str(seq), str(attempt), request))


# ---- figures


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile([1, math.inf], 99) == math.inf
    assert math.isnan(percentile([], 99))


@pytest.mark.parametrize(("value", "factor"), [(2.0, None), (3.0, 1.5), (math.inf, math.inf), (math.nan, math.inf)])
def test_a_target_is_missed_by_a_factor_and_without_a_figure_by_any(value: float, factor: float | None) -> None:
    report = Report("x")
    report.at_most("pause", value, 2.0, " s")
    assert list(report.missed.values()) == ([] if factor is None else [factor])
    assert report.verdict is (Verdict.PASS if factor is None else Verdict.FAIL)


def test_what_may_never_be_fails_and_is_shown() -> None:
    report = Report("x")
    report.none("stale records", ["0/17"])
    assert report.verdict is Verdict.FAIL
    assert str(report) == "x: stale records 1 [BROKEN: stale records: 0/17]: FAIL"
    assert Report("x", skipped="no namespaces").verdict is Verdict.SKIP


# ---- answers paid twice


@pytest.mark.parametrize(
    ("calls", "used", "killed", "broken"),
    [
        ([call("a"), call("b", seq=3)], {"a", "b"}, set(), 0),
        ([call("a"), call("b", pid=12)], {"b"}, {PID}, 0),  # in flight when its process was killed
        ([call("a"), call("b", pid=12)], {"a", "b"}, {PID}, 2),  # the log had the first answer: it was not in flight either
        ([call("a"), call("b")], {"b"}, set(), 2),  # nobody was killed
        ([call("a"), call("b", pid=12)], {"b"}, {12}, 2),  # another one was
    ],
)
def test_a_call_is_repeated_only_if_its_process_died_before_its_answer_was_kept(
    calls: list[Act], used: set[str], killed: set[int], broken: int
) -> None:
    report = Report("x")
    no_answer_paid_twice(report, calls, used, killed)
    assert len(report.broken) == broken, report


# ---- runs that are lost


async def lost(field: Ground, *, ended: bool = False, cancelled: tuple[str, ...] = ()) -> Report:
    assert field.load is not None
    field.load.posted.add(RUN_ID)
    report = Report("x")
    await field._no_run_is_lost(report, cancelled, ended)
    return report


async def test_a_run_that_is_in_no_record_is_lost(field: Ground) -> None:
    assert "runs standing still" in (await lost(field)).broken[0]


async def test_a_run_that_does_not_go_on_is_lost(field: Ground) -> None:
    saw(field, given("go").started().started_model())
    assert "runs standing still" in (await lost(field)).broken[0]


async def test_a_run_that_goes_on_has_not_ended(field: Ground) -> None:
    saw(field, given("go").started(), at=math.inf)
    assert not (await lost(field)).broken
    assert "runs not ended" in (await lost(field, ended=True)).broken[0]


async def test_a_request_that_arrives_once_more_after_the_end_opens_nothing(field: Ground) -> None:
    saw(field, SUCCESS.when(cast(RunRequested, SUCCESS.records[1].event)))
    assert not (await lost(field)).broken
    assert not field.watcher.open


async def test_a_run_must_succeed_unless_it_was_cancelled(field: Ground) -> None:
    saw(field, given("go").started().finished(Status.CANCELLED, Reason.CANCEL))
    assert "runs not SUCCEEDED" in (await lost(field)).broken[0]
    assert not (await lost(field, cancelled=(RUN_ID,))).broken


async def test_a_run_that_is_suspended_is_told_from_one_that_is_forgotten(field: Ground) -> None:
    saw(field, given("go").started().suspended(Reason.CRASH_LOOP), at=math.inf)
    report = await lost(field)
    assert "CRASH_LOOP" in report.broken[0]


def test_all_succeeded_passes_a_success() -> None:
    report = Report("x")
    all_succeeded(report, {RUN_ID: cast(Any, SUCCESS.records[-1].event)}, {})
    assert report.verdict is Verdict.PASS


# ---- stale records, and what the watcher tells


async def test_an_event_of_an_old_lease_after_a_newer_one_is_stale(field: Ground) -> None:
    old = given("go").started().started_model()
    saw(field, old.taken_over())
    assert not field.watcher.stale
    late = replace(old.taken_over(), epoch=0).answers(text("done"))
    saw(field, late, since=len(old.records) + 1)
    assert len(field.watcher.stale) == 1


async def test_a_partition_has_moved_when_a_run_has_not_when_it_is_owned(field: Ground) -> None:
    before = given("go").started()
    saw(field, before, at=1.0)
    owned = before.taken_over(OTHER)
    saw(field, owned, since=len(before.records), at=2.0)
    assert field.watcher.moved_since(0, 0) is None
    saw(field, owned.started_model(), since=len(owned.records), at=3.0)
    assert field.watcher.moved_since(0, 0) == 3.0
    assert field.watcher.owned_by(OTHER) == {0}


async def test_a_pause_is_from_the_end_of_a_step_to_the_next_beginning(field: Ground) -> None:
    ended = given("go").started().answers(tool_use("t1"))
    saw(field, ended, at=1.0)
    saw(field, ended.started_tool("t1"), since=len(ended.records), at=3.5)
    assert [(pause.since, pause.until) for pause in field.watcher.pauses] == [(1.0, 3.5)]


async def test_what_nobody_can_read_is_kept(field: Ground) -> None:
    field.watcher._take(Unreadable(0, 0, 0, None, b"?", Problem.MALFORMED, ""), 1.0)
    assert len(field.watcher.unreadable) == 1


# ---- acts of those that were away


@pytest.mark.parametrize(("places", "found"), [([(0, 7)], 0), ([(0, 3)], 1), ([], 1), ([(1, 7)], 1)])
def test_what_was_begun_under_no_lease_of_its_own_is_found(places: list[tuple[int, int]], found: int) -> None:
    assert len(acts_without_lease([call("a")], {(0, 7)}, lambda act: places)) == found


async def test_a_process_that_was_away_may_act_only_under_a_lease_that_it_took_since(
    field: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = given("go").started().started_model()
    saw(field, asked, at=1.0)
    did(field, f"0.5 {PID} call {RUN_ID} 1 1 early", f"5.0 {PID} call {RUN_ID} 1 1 late")
    assert await begun_without_lease(field, WORKER, PID, 2.0, 2.0) == [f"call {RUN_ID} 1 1 late of [(0, 0)]"]
    back = asked.taken_over(WORKER).started_model()
    saw(field, back, since=len(asked.records), at=4.0)
    did(field, f"5.5 {PID} call {RUN_ID} 1 2 fresh", f"5.6 {PID} tool {RUN_ID}/1/t1")
    monkeypatch.setattr(effects, "READ_SECONDS", 0.0)
    assert await begun_without_lease(field, WORKER, PID, 5.1, 2.0) == [f"tool {RUN_ID}/1/t1 of []"]


async def test_the_next_kill_waits_for_what_the_last_one_interrupted(field: Ground) -> None:
    first = given("go").started().started_model()
    again = first.taken_over(WORKER).started_model()
    assert cast(ModelStepStarted, again.records[-1].event).attempt == 2
    saw(field, again)
    waiting = Report("x")
    await kills.made_good(field, waiting, WORKER)
    assert waiting.broken
    saw(field, again.answers(text("done")), since=len(again.records))
    fine = Report("x")
    await kills.made_good(field, fine, WORKER)
    assert not fine.broken


async def test_a_load_leaves_no_partition_empty(field: Ground) -> None:
    commands = AsyncMock()
    load = Load(Plan(24, 1, 0, 0), 12, commands, Random(7), set())
    load.top_up()
    await load.stop()
    assert sorted(load._partition_of(run_id) for run_id in load.posted) == sorted([*range(12)] * 2)


async def test_a_ledger_gives_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = ledger.Ledger(tmp_path / "ledger")
    monkeypatch.setenv(ledger.PATH, str(book.path))
    await asyncio.gather(*(asyncio.to_thread(ledger.write, "worker", f"w{number}") for number in range(3)))
    assert sorted(act.words for act in book.acts("worker")) == [("w0",), ("w1",), ("w2",)]
    assert book.pid_of("worker", "w1")
    assert not book.acts("call")


async def test_an_order_is_answered_by_a_refusal_or_by_the_end_of_its_run(field: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "ANSWER_SECONDS", 0.0)
    given_orders = orders.Orders(field)
    given_orders.sent = {"c1": orders.Order(RUN_ID, 1.0), "c2": orders.Order("another", 1.0)}
    open_ = given("go").started()
    saw(field, open_.when(refusal("c1")), at=3.0)
    report = Report("x")
    await given_orders.judge(report, 5.0)
    assert report.broken == ["orders without an answer: c2 to another"]
    assert given_orders._took() == [2.0]


def refusal(command_id: str) -> CommandRejected:
    return CommandRejected(run_id=RUN_ID, epoch=0, command_id=command_id, reason=Rejection.NOT_SUSPENDED)


async def test_leases_are_told_from_runs(field: Ground) -> None:
    field.watcher._take(Record(LeaseAcquired(partition=0, worker=WORKER, build="b"), 0, 0, 0), 1.0)
    assert [lease.epoch for lease in field.leases_of(WORKER)] == [0]
    assert not field.watcher.open
