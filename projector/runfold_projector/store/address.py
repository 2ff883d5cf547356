"""A DSN before anything relies on it: whether it can be read, and who answers there."""

import psycopg
from psycopg.conninfo import conninfo_to_dict

from runfold.core.errors import ConfigError
from runfold_projector.store.errors import translated

EXPECTED = "postgresql://user:password@host:port/database"
TIMEOUT = 3  # seconds


def check_dsn(dsn: str) -> None:
    """Asks nobody. Raises `ConfigError` for a text that names no PostgreSQL; what may hold a password is not repeated."""
    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        came = "something else" if "@" in dsn or "password" in dsn else repr(dsn)
        raise ConfigError(f"RUNFOLD_DSN or --dsn: expected {EXPECTED}, got {came}") from None


def answering(dsn: str) -> str:
    """Which server answers, for people. Raises `ConfigError` as `check_dsn`, and `StoreError` when none does."""
    check_dsn(dsn)
    with translated("PostgreSQL cannot be used"), psycopg.connect(dsn, connect_timeout=TIMEOUT) as connection:
        said = connection.info
        return f"PostgreSQL {said.parameter_status('server_version')} at {said.host}:{said.port}, database {said.dbname}"
