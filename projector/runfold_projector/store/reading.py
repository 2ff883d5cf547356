"""The tables as the API reads them: the `ReadModel` port."""

from typing import Any, cast

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool

from runfold.core.errors import ReadUnavailable
from runfold_projector.store.session import READING, Row, settings
from runfold_projector.store.sql import SQL
from runfold_projector.values import named

Connection = psycopg.AsyncConnection[Row]

_FILTERS = {
    "before": "(requested_at, id) < (%(requested_at)s, %(id)s)",
    "status": "status = %(status)s",
    "agent": "agent = %(agent)s",
    "tenant": "tenant = %(tenant)s",
}


_CONNECTING = {  # a server that is lost without a word must not keep its connections from us
    "connect_timeout": 3,  # s
    "tcp_user_timeout": 10_000,  # ms
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}


class Reader:
    """Reads the tables of one topic; connects at the first use. Ids are texts, times UTC, amounts `Decimal`, metadata a dict.

    A database that is away costs a read about ``timeout`` seconds, and reads go on by themselves once it is back.
    """

    def __init__(self, dsn: str, topic: str, schema: str = "public", *, connections: int = 8, timeout: float = 3.0) -> None:
        self._topic, self._schema = topic, schema
        self._pool = AsyncConnectionPool(
            dsn,
            connection_class=Connection,
            kwargs={"autocommit": True, "row_factory": dict_row, **_CONNECTING},
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,
            min_size=1,
            max_size=connections,
            timeout=timeout,
            reconnect_timeout=timeout,  # then the next read tries anew, instead of an ever longer back-off
            open=False,
        )
        self._opened = False

    async def _configure(self, connection: Connection) -> None:
        connection.adapters.register_loader("uuid", TextLoader)
        await connection.execute(settings(READING, self._schema))

    async def run(self, run_id: str) -> Row | None:
        rows = await self._rows(SQL["run"], {"id": run_id})
        return rows[0] if rows else None

    async def steps(self, run_id: str) -> list[Row]:
        return await self._rows(SQL["steps"], {"run_id": run_id})

    async def runs(
        self,
        *,
        limit: int,
        before: tuple[Any, str] | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[Row]:
        names = {"agent": agent and named(agent), "tenant": tenant and named(tenant)}
        given = {"before": before, "status": status, **names}
        asked = [condition for name, condition in _FILTERS.items() if given[name] is not None]
        statement = f"{SQL['runs']} where {' and '.join(['true', *asked])} order by requested_at desc, id desc limit %(limit)s"
        requested_at, id_ = before or (None, None)
        return await self._rows(statement, {**given, "requested_at": requested_at, "id": id_, "limit": limit})

    async def applied(self, partition: int) -> int:
        rows = await self._rows(SQL["applied"], {"topic": self._topic, "partition": partition})
        return int(rows[0]["next_offset"]) if rows else 0

    async def reached(self) -> dict[int, int]:
        rows = await self._rows(SQL["reached"], {"topic": self._topic})
        return {row["partition"]: row["next_offset"] for row in rows}

    async def stalled(self, seconds: float) -> int:
        (row,) = await self._rows(SQL["stalled"], {"seconds": seconds})
        return int(row["runs"])

    async def close(self) -> None:
        await self._pool.close()

    async def _rows(self, statement: str, parameters: dict[str, Any]) -> list[Row]:
        try:
            await self._open()
            async with self._pool.connection() as connection:
                cursor = await connection.execute(cast(Any, statement), parameters)
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise ReadUnavailable(f"the projection cannot be read: {type(error).__name__}: {str(error).strip()}") from error

    async def _open(self) -> None:
        if not self._opened:
            self._opened = True
            await self._pool.open(wait=False)
