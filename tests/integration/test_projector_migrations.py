"""Migrations on a real PostgreSQL: once each, one migrator at a time, holding nobody up."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psycopg
import pytest

from runfold_projector.store import StoreError, migrate
from runfold_projector.store.migrating import migrations
from tests.integration.projecting import Topic, projecting, until
from tests.logs import random_log
from tests.tables import assert_tables_equal_fold

_NEXT = len(migrations()) + 1
_ADD_NOTE = (_NEXT, "note", "alter table run add column note text")


def columns_of(dsn: str, table: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select column_name from information_schema.columns where table_name = %s", [table]).fetchall()
    return [str(name) for (name,) in rows]


def applied(dsn: str) -> list[tuple[int, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select version, name from schema_version order by version").fetchall()


def with_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build after this one: it adds a column."""
    newer = [*migrations(), _ADD_NOTE]
    monkeypatch.setattr("runfold_projector.store.migrating.migrations", lambda: newer)


def test_numbers_begin_at_one_and_have_no_gaps() -> None:
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_second_migration_changes_nothing(dsn: str) -> None:
    assert migrate(dsn) == migrate(dsn) == len(migrations())
    assert applied(dsn) == [(number, name) for number, name, _ in migrations()]


def test_j07_2_many_migrators_at_once_are_one(dsn: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(migrate, [dsn] * 8))
    assert set(versions) == {len(migrations())}
    assert len(applied(dsn)) == len(migrations())


def test_j07_1_a_migration_that_waits_for_a_lock_lets_writers_pass(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """J07.1: an ALTER behind a long reader would block everybody behind it."""
    migrate(dsn)
    with_note(monkeypatch)
    monkeypatch.setattr("runfold_projector.store.migrating.LOCK_TIMEOUT", "300ms")
    with psycopg.connect(dsn) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("select * from run")
        migrated = pool.submit(migrate, dsn)
        until_blocked(dsn)
        with psycopg.connect(dsn) as writer:
            writer.execute("set statement_timeout = '3s'")
            writer.execute("update run set status = status")
        assert not migrated.done()
        reader.rollback()
        assert migrated.result(20) == len(migrations()) + 1
    assert "note" in columns_of(dsn, "run")


def until_blocked(dsn: str) -> None:
    """Wait until somebody waits for a lock."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(2000):
            waiting = connection.execute(
                "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            )
            if waiting.fetchone():
                return
            Event().wait(0.005)
    raise AssertionError("nobody waits for a lock")


def test_j07_3_a_newer_schema_is_left_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """J07.3: the old version of a rolling deploy is restarted after the new one has migrated."""
    with monkeypatch.context() as newer:
        with_note(newer)
        migrate(dsn)
    assert migrate(dsn) == len(migrations()) + 1


def test_a_migration_that_fails_leaves_nothing(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(dsn)
    broken = [*migrations(), (_NEXT, "broken", "alter table run add column note text; select 1 / 0")]
    with monkeypatch.context() as patch:
        patch.setattr("runfold_projector.store.migrating.migrations", lambda: broken)
        with pytest.raises(StoreError, match="DivisionByZero"):
            migrate(dsn)
    assert "note" not in columns_of(dsn, "run")
    assert migrate(dsn) == len(migrations())


def test_the_questions_of_the_docs_are_valid_sql(dsn: str) -> None:
    migrate(dsn)
    page = (Path(__file__).parents[2] / "docs/sql.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    with psycopg.connect(dsn) as connection:
        for statement in filter(str.strip, block.split(";")):
            connection.execute(statement.encode())


def test_every_table_view_and_column_has_a_comment(dsn: str) -> None:
    migrate(dsn)
    with psycopg.connect(dsn) as connection:
        bare = connection.execute(
            "select c.relname, a.attname from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 "
            "where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v') "
            "and (obj_description(c.oid) is null or col_description(c.oid, a.attnum) is null)"
        ).fetchall()
    assert bare == []


def test_j07_old_and_new_projectors_live_side_by_side_through_a_deploy(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """J07.1 to J07.3: the old one writes while two new ones want to migrate behind a long reader, and until it is stopped."""
    log = random_log(41, 900)
    topic = Topic(log, shown=False)
    monkeypatch.setattr("runfold_projector.store.migrating.LOCK_TIMEOUT", "300ms")
    migrate(dsn)
    with projecting(topic, dsn):
        topic.publish(0, 300)
        until(lambda: stands_at(dsn) == topic.ends()[0])
        with_note(monkeypatch)
        with psycopg.connect(dsn) as reader:
            reader.execute("select * from run")
            with projecting(topic, dsn), projecting(topic, dsn):
                until_blocked(dsn)
                topic.publish(0, 600)
                until(lambda: stands_at(dsn) == topic.ends()[0])  # J07.1: the old one is not held up
                assert "note" not in columns_of(dsn, "run")
                reader.rollback()
                until(lambda: "note" in columns_of(dsn, "run"))
                topic.publish()
                until(lambda: stands_at(dsn) == topic.ends()[0])  # J07.3: it writes on, with a column that it does not know
    assert applied(dsn)[-1][0] == len(migrations()) + 1  # J07.2: once
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table run drop column note")
    assert_tables_equal_fold(dsn, [log.deliveries])


def stands_at(dsn: str) -> int:
    """Where the tables stand in partition 0; asked by nobody who would migrate them."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select next_offset from projection_offset where partition = 0").fetchone()
    return 0 if row is None else int(row[0])
