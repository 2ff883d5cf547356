"""How the store's connections are set up."""

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

Row = dict[str, Any]

WRITING = {
    "application_name": "runfold-projector",
    "statement_timeout": "60s",
    # a projector that stands still for long (a stopped process, a lost machine) loses its session and with it the lead
    "idle_session_timeout": "15s",
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "5s",
    "tcp_keepalives_interval": "2s",
    "tcp_keepalives_count": "3",
    # few rows meet large tables: by index, whatever the statistics of young tables say
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}
READING = {"application_name": "runfold-reader", "statement_timeout": "3s", "default_transaction_read_only": "on"}


def settings(values: dict[str, str], schema: str) -> sql.Composed:
    """The statement that sets a session up."""
    calls = [sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in values.items()]
    path = sql.SQL("set_config('search_path', quote_ident({}), false)").format(schema)
    return sql.SQL("select {}").format(sql.SQL(", ").join([*calls, path, sql.SQL("set_config('timezone', 'UTC', false)")]))


def connect(dsn: str, schema: str) -> psycopg.Connection[Row]:
    """A writing session: autocommit, so that transactions are where the code says so. Raises `psycopg.Error`."""
    connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row, connect_timeout=5)
    try:
        connection.execute(settings(WRITING, schema))
    except BaseException:
        connection.close()
        raise
    return connection
