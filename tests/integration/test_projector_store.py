"""The store on a real PostgreSQL: whole batches or nothing, each row once, never back."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from runfold.core.errors import ConfigError
from runfold.core.events import Delivery, Limits, Reason, Status, Usage
from runfold_projector.batch import Batch
from runfold_projector.partition import Partition
from runfold_projector.store import StoreError, Writer
from runfold_projector.store.errors import Overtaken
from runfold_projector.store.session import WRITING
from tests.integration.projecting import TOPIC, probe, until
from tests.logs import RunScript, ScriptedLog, random_log, run_id
from tests.tables import assert_tables_equal_fold, dump

SEEDS = [1, 2, 3]


def batches(writer: Writer, deliveries: Sequence[Delivery], size: int) -> list[Batch]:
    """``deliveries`` of partition 0 from where the tables stand, ``size`` at a time."""
    partition = Partition(writer.positions(1)[0])
    found = []
    for start in range(0, len(deliveries), size):
        batch = Batch()
        for delivery in deliveries[start : start + size]:
            partition.apply(delivery, batch)
        partition.close(batch)
        found += [batch] if batch.moves else []
    return found


def write(dsn: str, deliveries: Sequence[Delivery], size: int = 10_000) -> None:
    with probe(dsn) as writer:
        for batch in batches(writer, deliveries, size):
            writer.write(batch)


def leased() -> ScriptedLog:
    log = ScriptedLog()
    log.lease("worker-A")
    return log


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_finished_run_and_its_steps_are_rows(dsn: str) -> None:
    log = leased()
    log.request("why?", metadata={"team": "a"}, tenant="acme", limits=Limits(cost_ceiling=Decimal("1.5"))).to_the_end()
    write(dsn, log.deliveries)
    assert_tables_equal_fold(dsn, [log.deliveries])
    assert query(dsn, "select seq, kind, status, latency_ms, worker from run_step order by seq") == [
        (1, "MODEL", "DONE", 1830, "worker-A"),
        (2, "TOOL", "DONE", 41, "worker-A"),
        (3, "MODEL", "DONE", 1830, "worker-A"),
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_o4_o5_the_tables_equal_the_fold_whatever_the_size_of_the_batches(dsn: str, seed: int, size: int) -> None:
    print(f"{seed=} {size=}")
    log = random_log(seed, 400)
    write(dsn, log.deliveries, size)
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_j02_v1_a_position_set_back_changes_no_row(dsn: str) -> None:
    log = random_log(4, 500)
    write(dsn, log.deliveries)
    before = dump(dsn)
    for back in (30, 200, 500):
        query(dsn, f"update projection_offset set next_offset = greatest(0, next_offset - {back})")
        write(dsn, log.deliveries, 50)
        assert dump(dsn) == before


def test_j02_v1_while_a_set_back_position_catches_up_no_row_goes_back(dsn: str) -> None:
    """J02.1"""
    log = random_log(5, 300)
    write(dsn, log.deliveries)
    before = dump(dsn)
    query(dsn, "update projection_offset set next_offset = 100")
    with probe(dsn) as writer:
        again = batches(writer, log.deliveries, 10)
        assert len(again) > 10
        for batch in again:
            writer.write(batch)
            found = dump(dsn)
            assert (found["run"], found["run_step"]) == (before["run"], before["run_step"])


def test_j02_v2_a_result_after_the_end_changes_no_row(dsn: str) -> None:
    log = leased()
    run = log.request().start().call_model().ask("a", "b").call_tool("a").call_tool("b").tool_ends("a").cancel()
    late = run.log.records[-2].event  # a's result, once more
    run.finish(Status.CANCELLED, Reason.CANCEL, command_id="cancel-1")
    write(dsn, log.deliveries)
    before = dump(dsn)
    log.append(late)
    write(dsn, log.deliveries)
    after = dump(dsn)
    assert (after["run"], after["run_step"]) == (before["run"], before["run_step"])


@pytest.mark.parametrize("changes", [{"last_offset": 99}, {"last_offset": 99, "first_offset": 50}])
@pytest.mark.parametrize("ended", [True, False])
def test_no_row_changes_after_the_end_or_by_another_run_whatever_the_fold_says(dsn: str, ended: bool, changes: Any) -> None:
    """J02.1: the last line of defence, in SQL."""
    log = leased()
    run = log.request().start()
    open_run = run.run
    if ended:
        run.finish(Status.CANCELLED, Reason.CANCEL)
    write(dsn, log.deliveries)
    before = dump(dsn)["run"]
    with probe(dsn) as writer:
        (here,) = writer.positions(1)
        writer.write(Batch(runs={run.id: replace(open_run, **changes)}, moves=[(here, replace(here, next_offset=100))]))
    assert (dump(dsn)["run"] == before) is (ended or "first_offset" in changes)


def test_j02_v3_a_record_delivered_three_times_counts_once(dsn: str) -> None:
    log = random_log(6, 300)
    write(dsn, [delivery for delivery in log.deliveries for _ in range(3)], 10)
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_r06_a_run_that_does_not_exist_has_no_row(dsn: str) -> None:
    """R06.3"""
    log = leased()
    RunScript(log, run_id(404)).cancel()
    log.request().to_the_end()
    write(dsn, log.deliveries)
    assert query(dsn, "select id::text from run") == [(run_id(1),)]


def test_the_first_run_of_an_id_keeps_its_rows_when_the_fold_has_forgotten_that_it_ended(dsn: str) -> None:
    """K09.2, long after: a request is repeated, and the projector, started anew, folds a second run of that id."""
    log = leased()
    first = log.request("A").to_the_end()
    for _ in range(600):
        log.request(" ").start().finish()
    write(dsn, log.deliveries)
    before = dump(dsn)
    forgetful = ScriptedLog(first_offset=log.next_offset)
    forgetful.lease("worker-B")
    forgetful.request("B", id_=first.id).start().call_model().ask("a", "b", "c").call_tool("a").tool_ends("a")
    write(dsn, forgetful.deliveries)
    after = dump(dsn)
    assert (after["run"], after["run_step"]) == (before["run"], before["run_step"])


def test_what_postgres_cannot_hold_is_stored_as_well_as_it_can_be(dsn: str) -> None:
    log = leased()
    largest = 2**63 - 1
    dear = Decimal("999999999999.999999999999")
    limits = Limits(token_budget=largest, timeout_ms=largest, max_steps=largest, cost_ceiling=dear)
    hostile = "\0" + "🎿" * 9000
    run = log.request(hostile, agent=hostile, tenant=hostile, metadata={hostile: "\0"}, limits=limits, model=hostile)
    usage = Usage(input_tokens=largest, output_tokens=largest)
    run.start().call_model().ask("a\0", usage=usage, cost=dear, request_id="\0").call_tool("a\0", name="\0")
    run.tool_ends("a\0", "\0\ud800").call_model().say("\0", usage=usage, cost=dear).finish(detail="\0")
    write(dsn, log.deliveries)
    columns = "status, left(input, 2), length(agent), length(tenant), input_tokens, cost_usd, extract(year from deadline)"
    assert query(dsn, f"select {columns} from run") == [("SUCCEEDED", "\ufffd🎿", 500, 500, largest, 2 * dear, 9999)]


def test_a_batch_of_very_many_rows_is_one_statement_each(dsn: str) -> None:
    """More rows than a statement could have parameters (65,535)."""
    log = leased()
    for _ in range(5000):
        log.request(" ").start().call_model()
    write(dsn, log.deliveries)
    assert query(dsn, "select count(*) from run_step") == [(5000,)]


def test_j01_2_rows_and_offsets_are_written_together_or_not_at_all(dsn: str) -> None:
    """J01.2, and J04 V3: a statement that fails leaves nothing of its batch."""
    log = leased()
    log.request().start().call_model()
    with probe(dsn) as writer:
        query(dsn, "alter table run_step add constraint broken check (seq > 1)")
        (batch,) = batches(writer, log.deliveries, 100)
        with pytest.raises(StoreError, match="CheckViolation"):
            writer.write(batch)
    found = dump(dsn)
    assert (found["run"], [row["next_offset"] for row in found["projection_offset"]]) == ([], [0])


def test_of_two_writers_that_come_from_the_same_position_one_gives_way(dsn: str) -> None:
    """J01 V2: compare-and-set."""
    log = leased()
    log.request().to_the_end()
    with probe(dsn) as one, probe(dsn) as other:
        (mine,), (theirs,) = batches(one, log.deliveries[:5], 100), batches(other, log.deliveries, 100)
        one.write(mine)
        before = dump(dsn)
        with pytest.raises(Overtaken):
            other.write(theirs)
    assert dump(dsn) == before


def test_one_writer_leads_until_its_session_is_gone(dsn: str) -> None:
    with probe(dsn) as standing_by:
        with probe(dsn) as leading:
            assert leading.lead()
            assert leading.lead()
            assert not standing_by.lead()
        until(standing_by.lead)


def test_a_leader_that_stands_still_loses_the_lead(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process, whose connection lives on: its session is ended for want of a sign of life."""
    monkeypatch.setitem(WRITING, "idle_session_timeout", "1s")
    with probe(dsn) as stopped, probe(dsn) as standing_by:
        assert stopped.lead()
        until(standing_by.lead)
        with pytest.raises(StoreError):
            stopped.lead()


def test_tables_of_another_topic_are_refused(dsn: str) -> None:
    with probe(dsn) as writer:
        writer.positions(1)
    with pytest.raises(ConfigError, match=r"expected the tables of topic 'other'.*found those of 'runs'"):
        Writer.open(dsn, "other")


def test_a_second_set_of_tables_stands_beside_the_first(dsn: str) -> None:
    log = leased()
    log.request().to_the_end()
    write(dsn, log.deliveries)
    writer = Writer.open(dsn, TOPIC, schema="Second set")
    for batch in batches(writer, log.deliveries, 3):
        writer.write(batch)
    writer.close()
    assert dump(dsn, "Second set") == dump(dsn)


def test_a_database_that_is_away_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="connecting to the database"):
        Writer.open("postgresql://nobody@127.0.0.1:1/nothing", TOPIC)


def test_a_snapshot_moves_only_where_a_restart_begins(dsn: str) -> None:
    log = leased()
    run = log.request().start().suspend()
    write(dsn, log.deliveries)
    before = dump(dsn)["run"]
    run.snapshot()
    write(dsn, log.deliveries)
    assert dump(dsn)["run"] == [before[0] | {"fold_from": log.next_offset - 1}]
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_a_log_that_has_lost_its_beginning_shows_a_run_from_its_snapshot_on(dsn: str) -> None:
    log = leased()
    run = log.request("why?").start().suspend().snapshot()
    write(dsn, log.deliveries[-1:])
    assert query(dsn, "select id::text, input, status from run") == [(run.id, "why?", "SUSPENDED")]


def test_a_resumption_raises_the_limits_of_the_row(dsn: str) -> None:
    log = leased()
    log.request(limits=Limits(token_budget=100, max_steps=7)).start().suspend().resume(token_budget=500)
    write(dsn, log.deliveries, 2)
    assert query(dsn, "select status, reason, token_budget, max_steps from run") == [("RUNNING", None, 500, 7)]
    assert_tables_equal_fold(dsn, [log.deliveries])
