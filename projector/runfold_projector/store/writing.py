"""The tables as the projector writes them: rows and offsets in ONE transaction, offsets moved by compare-and-set."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Self

import psycopg

from runfold.core.errors import ConfigError
from runfold_projector.batch import Batch, Position
from runfold_projector.rows import RunRow, RunState, StepEnd, StepStart, UnreadableRow
from runfold_projector.store.errors import Overtaken, translated
from runfold_projector.store.migrating import migrate_session
from runfold_projector.store.session import Row, connect
from runfold_projector.store.sql import SQL

SIGN_OF_LIFE = 5.0  # seconds; the session would be ended after `session.WRITING`'s idle_session_timeout
_LEAD = "select pg_try_advisory_lock(hashtextextended('runfold project ' || %s || ' ' || %s, 0)) as leads"


class Writer:
    """One session of the database, as long as it lasts. Blocking; one thread uses it. Every method raises `StoreError`,
    after which the session is of no use: close it and open another."""

    def __init__(self, connection: psycopg.Connection[Row], topic: str, schema: str) -> None:
        self._connection, self._topic, self._schema = connection, topic, schema
        self._spoke = time.monotonic()

    @classmethod
    def open(cls, dsn: str, topic: str, schema: str = "public") -> Self:
        """Connect, bring the tables to this build's version. ConfigError when they are those of another topic."""
        with translated("connecting to the database"):
            writer = cls(connect(dsn, schema), topic, schema)
        try:
            migrate_session(writer._connection, schema)
            writer._check_topic()
        except BaseException:
            writer.close()
            raise
        return writer

    def _check_topic(self) -> None:
        with translated("reading the topic of the tables"):
            row = self._connection.execute(SQL["other_topic"], {"topic": self._topic}).fetchone()
        if row is not None:
            raise ConfigError(
                f"expected the tables of topic {self._topic!r} in schema {self._schema!r}, found those of {row['topic']!r}: "
                "use another schema or database for this topic"
            )

    def lead(self) -> bool:
        """Become the one projector of the topic that writes, if there is none: as long as the session lasts."""
        with translated("asking for the lead"):
            row = self._connection.execute(_LEAD, [self._schema, self._topic]).fetchone()
        return row is not None and bool(row["leads"])

    def positions(self, partitions: int) -> list[Position]:
        """How far the tables have come in each partition, in order."""
        with translated("reading the positions"), self._connection.transaction():
            self._connection.execute(SQL["add_positions"], {"topic": self._topic, "partitions": partitions})
            rows = self._connection.execute(SQL["positions"], {"topic": self._topic}).fetchall()
        return [Position(**row) for row in rows]

    def write(self, batch: Batch) -> None:
        """All of ``batch`` in one transaction, or nothing. Raises `Overtaken` when a partition stands elsewhere by now.

        1. Move the partitions: whoever else does so waits here, and then finds them elsewhere.
        2. Write the runs, the new ones first. 3. Write the steps, starts before ends. 4. Write what could not be read.
        """
        with translated("writing a batch"), self._connection.transaction():
            with self._connection.pipeline():
                moved = self._put("move", [{**record(after), "found": before.next_offset} for before, after in batch.moves])
                new_runs = zip(batch.new_runs, batch.new_run_states, strict=True)
                self._put("insert_runs", [{**record(row), **record(state)} for row, state in new_runs])
                self._put("update_runs", [record(state) for state in batch.run_states])
                self._put("start_steps", [record(start) for start in batch.starts.values()])
                self._put("end_steps", [record(end) for end in batch.ends.values()])
                self._put("insert_unreadable", [record(row) for row in batch.unreadable])
            if moved is None or moved.rowcount != len(batch.moves):
                raise Overtaken("another projector moved the tables on: this one gives way")
        self._spoke = time.monotonic()

    def suspend_lost(self, beginnings: Mapping[int, int]) -> None:
        """Say of open runs that nobody can fold them any more. ``beginnings``: the log's oldest offsets, by partition."""
        rows = [{"partition": partition, "begins": offset} for partition, offset in beginnings.items() if offset > 0]
        with translated("suspending runs that the log has lost"), self._connection.transaction():
            self._put("suspend_lost", rows)

    def _put(self, statement: str, rows: Sequence[Row]) -> psycopg.Cursor[Row] | None:
        if not rows:
            return None
        text = json.dumps(rows, default=str, ensure_ascii=False)  # str: of times and amounts
        return self._connection.execute(SQL[statement], {"topic": self._topic, "rows": text})

    def keep_alive(self) -> None:
        """A sign of life, when there was none for some seconds: keeps the session, or finds that it is gone."""
        if time.monotonic() > self._spoke + SIGN_OF_LIFE:
            with translated("keeping the session"):
                self._connection.execute("select 1")
            self._spoke = time.monotonic()

    def close(self) -> None:
        self._connection.close()


def record(row: RunRow | RunState | StepStart | StepEnd | UnreadableRow | Position) -> Row:
    """A row as an object of JSON, but for times and amounts."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
