"""The consume loop on a real PostgreSQL and a log in memory: whatever breaks, it goes on from what is stored."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psycopg
import pytest

from runfold.core.errors import LogUnavailable, RunfoldError, TopicMismatch
from runfold.core.events import Problem, Record, RunCancelRequested, Unreadable
from runfold.core.shard import Ignored
from runfold.local import Postgres
from runfold_projector.service import Projector
from runfold_projector.store import Reader, Writer
from tests.integration.projecting import TOPIC, Topic, probe, project_all, projecting, reached, until, wait_until_level
from tests.logs import RunScript, ScriptedLog, random_log, run_id
from tests.tables import assert_tables_equal_fold, dump


@dataclass
class Noted:
    """An observer that remembers."""

    leads: list[bool] = field(default_factory=list)
    records: int = 0
    skipped: Counter[Ignored | Problem] = field(default_factory=Counter)
    errors: list[RunfoldError] = field(default_factory=list)

    def leading(self, leads: bool) -> None:
        self.leads.append(leads)

    def written(self, records: int, rows: int, seconds: float) -> None:
        self.records += records

    def ignored(self, why: Ignored, records: int) -> None:
        self.skipped[why] += records

    def unreadable(self, problem: Problem, records: int) -> None:
        self.skipped[problem] += records

    def retrying(self, error: RunfoldError, seconds: float) -> None:
        self.errors.append(error)


@contextmanager
def locked(dsn: str, table: str) -> Iterator[None]:
    """Nobody writes ``table`` inside the block."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"lock table {table} in exclusive mode".encode())
        yield


def break_sessions(dsn: str) -> int:
    """End every projector's connection; how many there were."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        ours = "application_name = 'runfold-projector' and datname = current_database()"
        return len(connection.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}".encode()).fetchall())


def leased() -> ScriptedLog:
    log = ScriptedLog()
    log.lease("worker-A")
    return log


def test_a_record_is_a_row_at_once(dsn: str) -> None:
    log, seconds = leased(), []
    topic = Topic(log)
    with projecting(topic, dsn), probe(dsn) as writer:
        until(lambda: reached(writer, 1)[0] == log.next_offset)
        for _ in range(20):
            Event().wait(0.03)  # idle, as between two steps of a run
            log.request()
            began = time.monotonic()
            topic.publish()
            until(lambda: reached(writer, 1)[0] == log.next_offset)
            seconds.append(time.monotonic() - began)
    print("ms until visible:", [round(1000 * taken) for taken in seconds])
    assert min(seconds) < 0.05


def test_the_observer_hears_each_record_once(dsn: str) -> None:
    log = leased()
    RunScript(log, run_id(404)).cancel()
    log.request().to_the_end()
    log.unreadable(Problem.MALFORMED)
    noted = Noted()
    with projecting(Topic(log), dsn, noted):
        until(lambda: noted.records == len(log.deliveries))
    with projecting(Topic(log), dsn, noted):
        wait_until_level(Topic(log), dsn)
    assert noted.records == len(log.deliveries)
    assert noted.skipped == {Ignored.LEASE: 1, Ignored.ORPHAN: 1, Problem.MALFORMED: 1}


@pytest.mark.parametrize(("seed", "overlap"), [(11, 500), (12, 3), (13, 0)])
def test_j01_stopped_and_started_at_random_the_tables_equal_those_of_one_clean_pass(
    dsn: str, seed: int, overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when a fold that starts knows nothing of runs that ended just before."""
    print(f"{seed=} {overlap=}")
    monkeypatch.setattr("runfold_projector.partition.OVERLAP", overlap)
    chance = random.Random(seed)
    logs = [random_log(seed, 700, partition) for partition in range(3)]
    topic = Topic(*logs, shown=False)
    for _ in range(10):
        for partition, log in enumerate(logs):
            topic.publish(partition, chance.randrange(len(log.deliveries)))
        with projecting(topic, dsn, at_once=chance.randrange(1, 60)), probe(dsn) as writer:
            wanted = sum(reached(writer, 3).values()) + chance.randrange(100)
            until(lambda: sum(reached(writer, 3).values()) >= wanted or topic.left(reached(writer, 3)) == 0)  # noqa: B023
            if chance.random() < 0.5:
                break_sessions(dsn)
    for partition in range(3):
        topic.publish(partition)
    project_all(topic, dsn)
    assert_tables_equal_fold(dsn, [log.deliveries for log in logs])


def test_j04_v1_a_lost_connection_loses_and_doubles_nothing(dsn: str) -> None:
    """J04.1"""
    log, noted = random_log(21, 2000), Noted()
    topic = Topic(log)
    with projecting(topic, dsn, noted, at_once=50):
        for _ in range(5):
            until(lambda: break_sessions(dsn) > 0)
        wait_until_level(topic, dsn)
    assert noted.errors
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_j04_v2_a_database_that_restarts_is_waited_for(tmp_path: Path) -> None:
    """J04.1, with a server of the test's own."""
    log, noted = random_log(27, 400), Noted()
    topic = Topic(log, shown=False)
    with Postgres(tmp_path) as server:
        with projecting(topic, server.dsn, noted):
            topic.publish(0, 200)
            wait_until_level(topic, server.dsn)
            server.stop()
            topic.publish()
            until(lambda: len(noted.errors) > 2)
            server.start()
            wait_until_level(topic, server.dsn, patience=15)
        assert_tables_equal_fold(server.dsn, [log.deliveries])


def test_j04_v3_a_statement_that_fails_is_tried_again_until_it_does_not(dsn: str) -> None:
    """J04.1"""
    log, noted = random_log(28, 400), Noted()
    topic = Topic(log, shown=False)
    with projecting(topic, dsn, noted):
        topic.publish(0, 200)
        wait_until_level(topic, dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("alter table projection_offset add constraint broken check (next_offset <= 200) not valid")
        topic.publish()
        until(lambda: len(noted.errors) > 2)
        with psycopg.connect(dsn) as connection:
            connection.execute("alter table projection_offset drop constraint broken")
        wait_until_level(topic, dsn, patience=15)
    assert all("CheckViolation" in str(error) for error in noted.errors)
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_an_error_of_the_log_is_waited_out(dsn: str) -> None:
    log, noted = random_log(22, 300), Noted()
    topic = Topic(log, shown=False)
    with projecting(topic, dsn, noted):
        topic.publish(0, 100)
        until(lambda: noted.records == 100)
        topic.fail(LogUnavailable("stopped by the test"))
        topic.publish()
        wait_until_level(topic, dsn)
    assert [str(error) for error in noted.errors] == ["stopped by the test"]
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_j01_v2_of_two_projectors_one_stands_by_and_takes_over(dsn: str) -> None:
    log, first, second = random_log(23, 600), Noted(), Noted()
    topic = Topic(log, shown=False)
    topic.publish(0, 200)
    with projecting(topic, dsn, first):
        until(lambda: first.records == 200)
        with projecting(topic, dsn, second):
            until(lambda: second.leads == [False])
            topic.publish(0, 300)
            until(lambda: first.records == 300)
            assert second.records == 0
            break_sessions(dsn)
            topic.publish()
            wait_until_level(topic, dsn)
    assert first.records + second.records == len(log.deliveries)
    assert_tables_equal_fold(dsn, [log.deliveries])


class Usurper(Writer):
    """A writer that takes itself for the leader."""

    def lead(self) -> bool:
        return True


def test_j01_v2_two_that_both_lead_do_no_harm(dsn: str) -> None:
    log, first, second = random_log(24, 1500), Noted(), Noted()
    topic = Topic(log)

    def usurp() -> Writer:
        return Usurper.open(dsn, TOPIC)

    with projecting(topic, dsn, first, 20, usurp), projecting(topic, dsn, second, 30, usurp):
        wait_until_level(topic, dsn)
    print("overtaken:", len(first.errors) + len(second.errors))
    assert first.records + second.records == len(log.deliveries)
    assert_tables_equal_fold(dsn, [log.deliveries])


def test_j06_3_the_lag_grows_while_nothing_can_be_written_and_is_gone_afterwards(dsn: str) -> None:
    log = random_log(25, 300)
    topic = Topic(log, shown=False)
    with projecting(topic, dsn) as projector:
        topic.publish(0, 100)
        wait_until_level(topic, dsn)
        with locked(dsn, "run"):
            topic.publish()
            until(lambda: projector.lag.seconds > 0.8)
        until(lambda: projector.lag.records == 0 and projector.lag.seconds < 0.5)


def test_a_projector_is_ready_while_the_tables_are_fresh(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it runs, and is connected to all that it needs, says nothing."""
    monkeypatch.setattr("runfold_projector.service.BEHIND_SECONDS", 0.8)
    log = random_log(26, 300)
    topic = Topic(log, shown=False)
    with projecting(topic, dsn) as projector:
        topic.publish(0, 100)
        wait_until_level(topic, dsn)
        until(lambda: not projector.troubles())
        with locked(dsn, "run"):
            topic.publish()
            until(lambda: "tables" in projector.troubles())
        until(lambda: not projector.troubles())


def test_a_topic_with_other_partitions_than_the_tables_know_is_refused(dsn: str) -> None:
    project_all(Topic(leased(), ScriptedLog(1)), dsn)
    topic = Topic(leased())
    with pytest.raises(TopicMismatch, match="expected the 2 partitions that the tables know, the topic has 1"):
        Projector(topic.source, lambda: Writer.open(dsn, TOPIC)).run(Event())


def test_stop_is_heard_while_standing_by_and_while_the_database_is_away(dsn: str) -> None:
    with probe(dsn) as leader:
        assert leader.lead()
        with projecting(Topic(leased()), dsn):
            pass
    with projecting(Topic(leased()), "postgresql://nobody@127.0.0.1:1/nothing"):
        pass


def test_j02_v1_set_back_by_30_while_it_runs(dsn: str) -> None:
    """Somebody turns the stored offset back under a running projector: it gives way to itself and goes on."""
    log, noted = random_log(26, 400), Noted()
    topic = Topic(log, shown=False)
    with projecting(topic, dsn, noted):
        topic.publish(0, 300)
        wait_until_level(topic, dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("update projection_offset set next_offset = next_offset - 30")
        topic.publish()
        wait_until_level(topic, dsn)
    assert noted.records > len(log.deliveries)
    assert_tables_equal_fold(dsn, [log.deliveries])
    once = dump(dsn)
    project_all(topic, dsn)
    assert dump(dsn) == once



def test_a_log_that_ends_before_what_the_tables_know_is_refused(dsn: str) -> None:
    """A new Kafka behind old tables: its first records would pass for known ones."""
    project_all(Topic(random_log(31, 400)), dsn)
    noted, shorter = Noted(), Topic(random_log(31, 400), shown=False)
    shorter.publish(count=20)
    with projecting(shorter, dsn, noted):
        until(lambda: any("lost records" in str(error) for error in noted.errors))


def test_an_open_run_whose_beginning_is_gone_says_so_when_an_owner_comes_that_cannot_know_it(dsn: str) -> None:
    """K11.2. Until then its owner may have it in memory; and one that writes of it afterwards has."""
    log = leased()
    topic = Topic(log, shown=False)
    gone, kept = log.request("gone").start(), log.request("ended").to_the_end()
    left = log.request("left").start()
    beginning = left.run.first_offset
    with projecting(topic, dsn):
        topic.publish()
        wait_until_level(topic, dsn)
        topic.beginnings[0] = beginning
        gone.call_model()
        topic.publish()
        wait_until_level(topic, dsn)
        assert stated(dsn, gone.id) == ("RUNNING", None), "its owner goes on"
        log.lease("worker-B")
        topic.publish()
        until(lambda: stated(dsn, gone.id) == ("SUSPENDED", "HISTORY_LOST"))
        log.append(RunCancelRequested(run_id=gone.id, command_id="c", requested_by="test"))
        topic.publish()
        wait_until_level(topic, dsn)
        assert stated(dsn, gone.id) == ("SUSPENDED", "HISTORY_LOST"), "a command changes nothing"
        assert stated(dsn, left.id) == ("RUNNING", None)
        assert stated(dsn, kept.id)[0] == "SUCCEEDED"
        gone.say().finish()
        topic.publish()
        wait_until_level(topic, dsn)
        assert stated(dsn, gone.id)[0] == "SUCCEEDED", "its new owner was the old one, with all in memory"


def test_k02_a_run_waits_for_a_newer_version_until_one_shows_it(dsn: str) -> None:
    """Also when the newer one finds no record of the run that the tables do not know."""
    log = leased()
    run = log.request("newer").start()
    key = run.id.encode()
    log.unreadable(Problem.UNKNOWN_SCHEMA, key=key)
    project_all(Topic(log), dsn)
    assert stated(dsn, run.id) == ("SUSPENDED", "NEEDS_NEWER_VERSION")
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select record_offset, run_id::text, problem from unreadable_record").fetchall()
    assert rows == [(log.next_offset - 1, run.id, "UNKNOWN_SCHEMA")]

    place = log.deliveries[-1].offset
    read = Record(RunCancelRequested(run_id=run.id, command_id="c", requested_by="test"), 0, place, log.deliveries[-1].timestamp)
    log.deliveries[-1] = read  # as the next version reads it
    topic = Topic(log)
    with projecting(topic, dsn):
        until(lambda: stated(dsn, run.id) == ("RUNNING", None))


def test_k02_an_older_version_does_not_lead_a_run_back_that_a_newer_one_has_shown(dsn: str) -> None:
    """It leads again after a deploy that is taken back, or that had begun with another projector."""
    log = leased()
    run = log.request("both").start()
    before = list(log.deliveries)
    run.call_model()
    project_all(Topic(log), dsn)
    shown = dump(dsn)["run"]
    place = log.deliveries[-1]
    log.deliveries = [*before, Unreadable(0, place.offset, place.timestamp, run.id.encode(), b"?", Problem.UNKNOWN_SCHEMA, "new")]
    log.unreadable(Problem.UNKNOWN_SCHEMA, key=run.id.encode())
    project_all(Topic(log), dsn)
    assert dump(dsn)["run"] == shown


def test_a_run_that_waits_for_a_newer_version_counts_as_stalled(dsn: str) -> None:
    """Also where no worker is left to count it."""
    log = leased()
    run = log.request("newer").start()
    log.unreadable(Problem.UNKNOWN_SCHEMA, key=run.id.encode())
    project_all(Topic(log), dsn)

    async def stalled() -> int:
        reader = Reader(dsn, TOPIC)
        try:
            return await reader.stalled(0)
        finally:
            await reader.close()

    assert asyncio.run(stalled()) == 1


@pytest.mark.parametrize("problem", Problem)
def test_whatever_makes_a_record_unreadable_has_a_row(dsn: str, problem: Problem) -> None:
    log = leased()
    log.unreadable(problem, key=b"\0 no utf-8: \xff")
    project_all(Topic(log), dsn)
    assert [row["problem"] for row in dump(dsn)["unreadable_record"]] == [problem]


def stated(dsn: str, run_id: str) -> tuple[str, str | None]:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select status, reason from run where id = %s", [run_id]).fetchone()
    assert row is not None
    return row


def test_a_projector_that_begins_after_the_deletion_says_it_too(dsn: str) -> None:
    log = leased()
    gone = log.request("gone").start()
    topic = Topic(log)
    project_all(topic, dsn)
    topic.beginnings[0] = log.next_offset
    with projecting(topic, dsn):
        until(lambda: stated(dsn, gone.id) == ("SUSPENDED", "HISTORY_LOST"))
