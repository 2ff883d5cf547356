"""Forward-only migrations: ``migrations/<number>_<what>.sql``, each applied once, in order, in a transaction of its own.

One migrator at a time (advisory lock). A migration that cannot get its table locks in 2 s gives up and tries again, so that it
never holds up readers and writers behind a long reader. A schema newer than this build is left as it is: the old version of
a rolling deploy goes on.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files

import psycopg
from psycopg import sql

from runfold_projector.store.errors import StoreError, translated
from runfold_projector.store.session import Row, connect

LOCK_TIMEOUT = "2s"
_PATIENCE = 120.0  # seconds of waiting for locks, before giving up

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_SCHEMA_VERSION = """
create table if not exists schema_version (
    version integer primary key,
    name text not null,
    applied_at timestamptz not null default now()
);
comment on table schema_version is 'The migrations that made these tables.';
comment on column schema_version.version is 'Number of the migration.';
comment on column schema_version.name is 'Its name.';
comment on column schema_version.applied_at is 'When it was applied, by the clock of the database.';
"""


def migrate(dsn: str, schema: str = "public") -> int:
    """Bring the tables in ``schema`` to this build's version; the version they have then. Raises `StoreError`."""
    with translated("connecting to migrate"), connect(dsn, schema) as connection:
        return migrate_session(connection, schema)


def migrate_session(connection: psycopg.Connection[Row], schema: str) -> int:
    """`migrate`, on a connection in autocommit mode whose search path is ``schema``."""
    with translated(f"migrating the schema {schema!r}"):
        version = _version(connection)
        if version < max(number for number, _, _ in migrations()):
            version = _migrate(connection, schema)
        return version


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, SQL) of each, in order."""
    found = [(_FILE.fullmatch(file.name), file) for file in (files(__package__) / "migrations").iterdir()]
    return sorted((int(name[1]), name[2], file.read_text("utf-8")) for name, file in found if name)


def _version(connection: psycopg.Connection[Row]) -> int:
    try:
        row = connection.execute("select coalesce(max(version), 0) as version from schema_version").fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return int(row["version"]) if row else 0


def _migrate(connection: psycopg.Connection[Row], schema: str) -> int:
    deadline = time.monotonic() + _PATIENCE
    with _only_migrator(connection, schema, deadline):
        connection.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
        connection.execute(_SCHEMA_VERSION)
        reached = _version(connection)
        for number, name, statements in migrations():
            if number > reached:
                _until(deadline, partial(_apply, connection, number, name, statements))
        return _version(connection)


@contextmanager
def _only_migrator(connection: psycopg.Connection[Row], schema: str, deadline: float) -> Iterator[None]:
    key = f"runfold migrate {schema}"
    _until(deadline, lambda: _patiently(connection, "select pg_advisory_lock(hashtextextended(%s, 0))", [key]))
    yield  # an error ends the session, and the lock with it
    connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [key])


def _apply(connection: psycopg.Connection[Row], number: int, name: str, statements: str) -> None:
    with connection.transaction():
        _patiently(connection, statements)
        connection.execute("insert into schema_version (version, name) values (%s, %s)", [number, name])


def _patiently(connection: psycopg.Connection[Row], statements: str, parameters: Sequence[object] | None = None) -> None:
    """With all the time it takes, but without holding others up while it waits for a lock."""
    with connection.transaction():
        connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'; set local statement_timeout = 0")
        connection.execute(statements.encode(), parameters)


def _until(deadline: float, attempt: Callable[[], object]) -> None:
    """Repeat what fails for want of a lock."""
    while True:
        try:
            attempt()
        except psycopg.errors.LockNotAvailable as error:
            if time.monotonic() > deadline:
                raise StoreError(f"expected the locks for a migration within {_PATIENCE:.0f} s: {error}") from error
            time.sleep(0.2)  # let those pass who queued behind us
        else:
            return
