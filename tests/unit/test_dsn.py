"""A DSN that names no PostgreSQL is refused where a process starts, before it asks anybody anything."""

import socket

import pytest

from runfold.cli.options import need_dsn, settings
from runfold.core.errors import ConfigError
from runfold.local.loopback import HOST
from runfold_projector.store import check_dsn


def nobody_listens() -> int:
    """A port."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def test_a_process_that_needs_tables_refuses_a_dsn_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="expected postgresql://user:password@host:port/database, got 'foo'"):
        need_dsn(settings(dsn="foo"))


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="got something else"):
        check_dsn("postgresql://me:secret@host:1/x?nonsense=1")


@pytest.mark.parametrize("dsn", ["postgresql://me@host:5432/runs", "host=db dbname=runs", "postgresql:///runs?sslmode=require"])
def test_every_form_that_libpq_reads_will_do(dsn: str) -> None:
    check_dsn(dsn)
