"""The projector's pure part: what records mean for rows, and how a partition's fold goes on after a restart."""

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

import pytest

from runfold.core.events import Delivery, Limits, Problem, Reason, Status, ToolStatus, Unreadable, Usage
from runfold.core.shard import OVERLAP, Ignored
from runfold_projector.batch import Batch, Position
from runfold_projector.partition import Partition
from runfold_projector.rows import RunRow, RunState, StepEnd, StepStart, StepStatus, UnreadableRow
from runfold_projector.store.sql import SQL, named_statements
from runfold_projector.values import moment, named, stored, tokens
from tests.logs import NOON, RunScript, ScriptedLog, run_id


def project(deliveries: Iterable[Delivery], stored_position: Position | None = None) -> Batch:
    """One batch of everything from where reading must start."""
    partition, batch = Partition(stored_position or Position(partition=0)), Batch()
    for delivery in deliveries:
        if delivery.offset >= partition.low:
            partition.apply(delivery, batch)
    partition.close(batch)
    return batch


def leased() -> ScriptedLog:
    log = ScriptedLog()
    log.lease("worker-A")
    return log


# ---- rows


def test_a_run_is_one_row_with_what_its_last_record_says() -> None:
    log = leased()
    log.request("why?").to_the_end(tools=2)
    batch = project(log.deliveries)
    (row,), (state,) = batch.new_runs, batch.run_states
    assert (row.id, row.input, row.requested_at) == (run_id(1), "why?", moment(NOON + 1))
    assert (state.status, state.reason, state.steps) == (Status.SUCCEEDED, Reason.FINAL_ANSWER, 5)
    assert (state.first_offset, state.last_offset) == (1, log.next_offset - 1)
    assert batch.new_run_states == [state]


def test_a_start_names_the_worker_of_the_lease() -> None:
    log = leased()
    log.request().start().call_model().ask("a").call_tool("a")
    log.lease("worker-B")
    RunScript(log, run_id(1)).call_tool("a")
    starts = project(log.deliveries).starts
    assert [(start.worker, start.attempt) for start in starts.values()] == [("worker-A", 1), ("worker-B", 2)]


def test_a_further_attempt_clears_what_the_last_one_left() -> None:
    log = leased()
    run = log.request().start().call_model().model_fails()
    assert project(log.deliveries).ends[run.id, 1].error_reason is Reason.OVERLOADED
    run.call_model()
    batch = project(log.deliveries)
    assert batch.ends == {}
    assert (batch.starts[run.id, 1].attempt, batch.starts[run.id, 1].failures) == (2, 1)


def test_what_a_failed_call_used_is_wasted_and_in_no_other_column() -> None:
    log = leased()
    run = log.request().start().call_model().model_fails(usage=Usage(input_tokens=7))
    batch = project(log.deliveries)
    assert batch.ends[run.id, 1].input_tokens is None
    (state,) = batch.run_states
    assert (state.wasted_tokens, state.total_tokens) == (7, 0)


@pytest.mark.parametrize("status", list(ToolStatus))
def test_a_tool_step_ends_as_the_model_reads_it(status: ToolStatus) -> None:
    log = leased()
    run = log.request().start().call_model().ask("a").call_tool("a").tool_ends("a", "no such ticket", status)
    end = project(log.deliveries).ends[run.id, 2]
    assert end.status == StepStatus(status.value)
    assert end.error_message == (None if status is ToolStatus.DONE else "no such ticket")


def test_b01_4_a_step_under_way_when_its_run_ends_stays_started() -> None:
    log = leased()
    run = log.request().start().call_model().ask("a").call_tool("a").cancel()
    run.finish(Status.CANCELLED, Reason.CANCEL)
    batch = project(log.deliveries)
    assert (run.id, 2) in batch.starts
    assert (run.id, 2) not in batch.ends


def test_r06_records_of_a_run_that_does_not_exist_are_counted_orphans() -> None:
    """R06.2, R06.3"""
    log = leased()
    ghost = RunScript(log, run_id(404)).cancel()
    for _ in range(2):
        log.append(log.records[-1].event)
    good = log.request().to_the_end()
    batch = project(log.deliveries)
    assert batch.ignored[Ignored.ORPHAN] == 3
    assert ghost.id not in batch.runs
    assert list(batch.runs) == [good.id]


def test_k09_what_cannot_be_read_is_counted_and_passed_over() -> None:
    """K09.1"""
    log = leased()
    run = log.request().start()
    log.unreadable(Problem.NULL_VALUE, key=run.id.encode())
    log.unreadable(Problem.NULL_VALUE, key=run_id(404).encode())
    run.call_model().say().finish()
    batch = project(log.deliveries)
    assert batch.problems == {Problem.NULL_VALUE: 2}
    assert batch.runs[run.id].status is Status.SUCCEEDED


def test_k01_what_cannot_be_read_has_a_row_that_says_where_and_why() -> None:
    log = leased()
    key = b"no \xff utf-8\0" + b"x" * 1000
    log.deliveries.append(Unreadable(0, 7, NOON, key, b"?!", Problem.NO_KEY, "d" * 1000, b"Foo", from_owner=True))
    (row,) = project(log.deliveries).unreadable
    assert row.key is not None
    assert (row.key[:12], len(row.key)) == ("no \ufffd utf-8\ufffdx", 500)
    assert (row.partition, row.record_offset, row.recorded_at, row.run_id) == (0, 7, moment(NOON), None)
    assert (row.record_type, row.from_owner, row.value_bytes, row.problem) == ("Foo", True, 2, Problem.NO_KEY)
    assert len(row.detail) == 500


# ---- K02: what a newer version can read


def newer(log: ScriptedLog, run: RunScript) -> None:
    """The next record of ``run`` is one that this build cannot read."""
    log.unreadable(Problem.UNKNOWN_SCHEMA, key=run.id.encode())


def shown(batch: Batch, run: RunScript) -> tuple[Status, Reason | None]:
    return batch.runs[run.id].status, batch.runs[run.id].reason


PARKED = Status.SUSPENDED, Reason.NEEDS_NEWER_VERSION


def test_k02_a_run_with_a_record_of_a_newer_version_says_that_it_waits_for_it() -> None:
    log = leased()
    run, other = log.request().start(), log.request().start()
    newer(log, run)
    batch = project(log.deliveries)
    assert shown(batch, run) == PARKED
    assert batch.runs[run.id].detail.startswith("the record at 0/5 is for a newer version to read")
    assert shown(batch, other) == (Status.RUNNING, None)
    run.call_model()  # by a newer worker
    assert shown(project(log.deliveries), run) == PARKED, "it lacks a record still"
    run.say().finish()
    assert shown(project(log.deliveries), run)[0] is Status.SUCCEEDED, "the end is the end"


def test_k02_a_restart_forgets_no_run_that_waits() -> None:
    log = leased()
    run = log.request().start()
    newer(log, run)
    (_, stored_position) = project(log.deliveries).moves[0]
    run.call_model()
    assert shown(project(log.deliveries, replace(stored_position, low=run.run.first_offset)), run) == PARKED


def waited(log: ScriptedLog, run: RunScript) -> Position:
    """What the tables say once an older version has come to the end of ``log``, and could not follow ``run``."""
    (_, reached) = project(log.deliveries).moves[0]
    return replace(reached, low=run.run.first_offset, waiting=(run.id,))


def test_k02_a_version_that_can_read_it_says_how_the_run_stands_without_a_further_record() -> None:
    log = leased()
    run = log.request().start().call_model()
    stored_position = waited(log, run)
    batch = project(log.deliveries, stored_position)
    assert shown(batch, run) == (Status.RUNNING, None)
    assert batch.moves == [(stored_position, replace(stored_position, low=None, waiting=()))], "the same place"


def test_k02_also_that_it_has_ended() -> None:
    log = leased()
    run = log.request().start()
    opened = run.run.first_offset
    run.call_model().say().finish()
    (_, reached) = project(log.deliveries).moves[0]
    log.lease("worker-B")
    batch = project(log.deliveries, replace(reached, low=opened, waiting=(run.id,)))
    assert shown(batch, run)[0] is Status.SUCCEEDED


def test_k02_not_while_it_lacks_a_record_itself() -> None:
    log = leased()
    run = log.request().start()
    newer(log, run)
    assert shown(project(log.deliveries, waited(log, run)), run) == PARKED


def test_k02_what_an_older_projector_passed_over_makes_its_run_wait_too() -> None:
    """One that had no word for it, or one that was newer and is gone again."""
    log = leased()
    run = log.request().start()
    newer(log, run)
    batch = project(log.deliveries, replace(waited(log, run), waiting=()))
    assert shown(batch, run) == PARKED


def test_k02_it_says_so_once() -> None:
    log = leased()
    run = log.request().start().call_model()
    partition, batch, again = Partition(waited(log, run)), Batch(), Batch()
    for delivery in log.deliveries:
        partition.apply(delivery, batch)
    partition.close(batch)
    partition.close(again)
    assert (len(batch.moves), again.moves) == (1, [])


def test_k02_a_command_that_no_version_may_ever_read_makes_no_run() -> None:
    log = leased()
    log.unreadable(Problem.UNKNOWN_SCHEMA, key=run_id(404).encode())
    batch = project(log.deliveries)
    assert (batch.runs, len(batch.unreadable)) == ({}, 1)


@pytest.mark.parametrize("when", ["before the start", "in mid-run", "after the end"])
def test_k09_a_repeated_request_changes_nothing(when: str) -> None:
    """K09.2"""
    log = leased()
    run = log.request("A", limits=Limits(max_steps=7))
    if when != "before the start":
        run.start().call_model().ask("a")
    if when == "after the end":
        run.call_tool("a").tool_ends("a").call_model().say().finish()
    before = project(log.deliveries)
    log.request("B", id_=run.id, limits=Limits(max_steps=9))
    after = project(log.deliveries)
    assert (after.new_runs, after.run_states) == (before.new_runs, before.run_states)
    assert after.ignored[Ignored.REPEATED] == 1


# ---- what PostgreSQL cannot hold


def test_texts_lose_nul_and_lone_surrogates_only() -> None:
    assert stored("a\0b") == "a\ufffdb"
    assert stored("Zürich 🎿 \ud800") == "Zürich 🎿 ?"


def test_names_fit_into_an_index() -> None:
    assert len(named("🎿" * 9000).encode()) <= 2000


def test_numbers_and_times_fit_their_columns() -> None:
    assert tokens(Usage(input_tokens=2**63 - 1) + Usage(input_tokens=9))["input_tokens"] == 2**63 - 1
    assert moment(2**63 - 1).year == 9999
    assert moment(-(2**63)).year == 1
    assert moment(NOON + 1) - moment(NOON) == moment(1) - moment(0)


# ---- a partition's fold


def position_after(log: ScriptedLog, count: int) -> Position:
    """Where the tables stand once the first ``count`` deliveries are in them."""
    partition, batch = Partition(Position(partition=log.partition)), Batch()
    for delivery in log.deliveries[:count]:
        partition.apply(delivery, batch)
    partition.close(batch)
    open_runs = [run.fold_from for run in batch.runs.values() if not run.status.final]
    return replace(batch.moves[0][1], low=min(open_runs, default=None))


def test_after_a_restart_the_fold_knows_open_runs_and_writes_only_what_is_new() -> None:
    log = leased()
    run = log.request().start()
    for _ in range(OVERLAP + 5):  # the run begins long before the overlap
        log.request(" ")
    count = len(log.deliveries)
    run.call_model()
    batch = project(log.deliveries, position_after(log, count))
    assert batch.records == 1
    assert list(batch.runs) == [run.id]
    assert batch.starts[run.id, 1].worker == "worker-A"


def test_after_a_restart_the_lease_is_known_though_its_record_is_not_read_again() -> None:
    log = leased()
    for _ in range(OVERLAP + 5):
        log.request().to_the_end(0)
    count = len(log.deliveries)
    run = log.request().start().call_model()
    there = position_after(log, count)
    assert Partition(there).low > there.lease_epoch
    batch = project(log.deliveries, there)
    assert batch.starts[run.id, 1].worker == "worker-A"
    ((_, reached),) = batch.moves
    assert (reached.lease_epoch, reached.lease_worker) == (0, "worker-A")


def test_after_a_restart_an_old_open_run_is_folded_from_its_snapshot() -> None:
    log = leased()
    run = log.request().start().call_model().ask("a")
    for _ in range(OVERLAP + 5):
        log.request(" ").start().finish()
    run.snapshot()
    snapshot_offset = log.records[-1].offset
    for _ in range(OVERLAP + 5):
        log.request(" ").start().finish()
    there = position_after(log, len(log.deliveries))
    assert there.low == Partition(there).low == snapshot_offset
    run.call_tool("a").tool_ends("a").call_model().say().finish()
    batch = project(log.deliveries, there)
    assert batch.runs[run.id].usage == run.run.usage
    assert batch.runs[run.id].status is Status.SUCCEEDED


def test_after_a_restart_a_request_of_a_run_that_ended_lately_is_known_for_a_repetition() -> None:
    """K09.2 across a restart"""
    log = leased()
    run = log.request("A").to_the_end()
    count = len(log.deliveries)
    log.request("B", id_=run.id)
    batch = project(log.deliveries, position_after(log, count))
    assert (batch.runs, batch.ignored) == ({}, {Ignored.REPEATED: 1})


def test_a_position_set_back_before_its_lease_does_not_make_earlier_events_stale() -> None:
    """J02, the fold's side: a lease that is read again later must not count now."""
    log = leased()
    run = log.request().start().call_model()
    log.lease("worker-B")
    run.call_model().say().finish()
    ahead = position_after(log, len(log.deliveries))
    back = Position(partition=0, next_offset=2, lease_epoch=ahead.lease_epoch, lease_worker=ahead.lease_worker)
    batch = project(log.deliveries, back)
    assert batch.ignored == {Ignored.LEASE: 1}
    assert batch.runs[run.id].status is Status.SUCCEEDED


def test_j02_the_same_delivery_again_is_passed_over() -> None:
    log = leased()
    log.request().to_the_end()
    thrice = [delivery for delivery in log.deliveries for _ in range(3)]
    once, more = project(log.deliveries), project([*thrice, *log.deliveries])
    assert more.records == once.records == len(log.deliveries)
    assert more.moves == once.moves


def test_a_batch_of_records_that_change_nothing_moves_the_partition_all_the_same() -> None:
    log = leased()
    log.unreadable()
    batch = project(log.deliveries)
    assert (batch.rows, [after.next_offset for _, after in batch.moves]) == (1, [2]), "one says that it could not be read"


def test_one_record_after_the_other_makes_the_same_moves_as_all_at_once() -> None:
    log = leased()
    log.request().to_the_end()
    partition, reached = Partition(Position(partition=0)), []
    for delivery in log.deliveries:
        batch = Batch()
        partition.apply(delivery, batch)
        partition.close(batch)
        reached += batch.moves
    assert [before.next_offset for before, _ in reached[1:]] == [after.next_offset for _, after in reached[:-1]]
    assert reached[-1][1] == project(log.deliveries).moves[0][1]


# ---- the statements


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("insert_runs", (RunRow, RunState)),
        ("update_runs", (RunState,)),
        ("start_steps", (StepStart,)),
        ("end_steps", (StepEnd,)),
        ("move", (Position,)),
        ("insert_unreadable", (UnreadableRow,)),
    ],
)
def test_every_field_of_a_row_is_taken_by_its_statement(statement: str, rows: tuple[type[Any], ...]) -> None:
    (taken,) = re.findall(r"json_to_recordset\(%\(rows\)s\) as new \((.*?)\n\)", SQL[statement], re.DOTALL)
    names = {field.name for row in rows for field in fields(row)} - {"low", "waiting"}
    assert {column.split()[0] for column in taken.split(",")} - {"found"} == names


def test_named_statements_are_taken_apart_at_their_names() -> None:
    assert named_statements("-- about\n\n-- name: a\nselect 1;\n\n-- name: b\n-- why\nselect\n2;\n") == {
        "a": "select 1",
        "b": "-- why\nselect\n2",
    }


def test_cost_of_a_model_without_a_price_is_unknown_not_zero() -> None:
    log = leased()
    run = log.request().start().call_model().ask("a", cost=Decimal("0.5")).call_tool("a").tool_ends("a")
    run.call_model().say(cost=None)
    batch = project(log.deliveries)
    assert [batch.ends[run.id, seq].cost_usd for seq in (1, 3)] == [Decimal("0.5"), None]
    assert batch.run_states[0].cost_usd is None
