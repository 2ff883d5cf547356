"""The API in the test's own process: over the memory log, and a projection that moves only when the test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from runfold.api.app import create_app
from runfold.api.exchanges import Exchange
from runfold.api.rows import row_of
from runfold.core.errors import ReadUnavailable
from runfold.core.events import Command, Record, RunCancelRequested, RunRequested
from runfold.core.run import Run, fold
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryTail

Row = dict[str, Any]


class Projection:
    """A `runfold.ports.ReadModel`: `catch_up` is the projector."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.rows: dict[str, Row] = {}
        self.timelines: dict[str, list[Row]] = {}
        self.offsets = [0] * len(broker.partitions)
        self.up = True
        self.asked: list[str] = []

    async def catch_up(self) -> None:
        for run in await runs_of(self.broker):
            self.rows.setdefault(run.id, row_of(run))
            self.offsets[run.partition] = max(self.offsets[run.partition], run.last_offset + 1)

    async def run(self, run_id: str) -> Row | None:
        self._ask("run")
        return self.rows.get(run_id)

    async def steps(self, run_id: str) -> list[Row]:
        self._ask("steps")
        return self.timelines.get(run_id, [])

    async def runs(
        self,
        *,
        limit: int,
        before: tuple[Any, str] | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[Row]:
        self._ask("runs")
        wanted = {"status": status, "agent": agent, "tenant": tenant}
        rows = [row for row in self.rows.values() if all(value is None or row[name] == value for name, value in wanted.items())]
        rows.sort(key=_newest, reverse=True)
        return [row for row in rows if before is None or _newest(row) < before][:limit]

    async def applied(self, partition: int) -> int:
        self._ask("applied")
        return self.offsets[partition]

    async def reached(self) -> dict[int, int]:
        self._ask("reached")
        return dict(enumerate(self.offsets))

    async def stalled(self, seconds: float) -> int:
        """As if every row last moved when it was requested."""
        self._ask("stalled")
        rows = [row for row in self.rows.values() if row["finished_at"] is None and row["status"] != "SUSPENDED"]
        return sum(self.broker.clock() / 1000 - row["requested_at"].timestamp() > seconds for row in rows)

    async def close(self) -> None:
        pass

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if not self.up:
            raise ReadUnavailable("stopped by the test")


def _newest(row: Row) -> tuple[datetime, str]:
    return row["requested_at"], row["id"]


@dataclass
class World:
    """One API and what stands behind it."""

    broker: MemoryBroker
    projection: Projection
    client: httpx.AsyncClient
    registry: CollectorRegistry
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def sent(self) -> list[Command]:
        """Every command on the log."""
        return [record.event for record in records_of(self.broker) if isinstance(record.event, Command)]

    async def submit(self, **body: Any) -> str:
        answer = await self.client.post("/api/runs", json={"input": "go", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])


def records_of(broker: MemoryBroker) -> list[Record]:
    records = []
    for partition in broker.partitions:
        for stored in partition.visible(0):
            raw = stored.raw
            assert raw.value is not None
            records.append(Record(broker.codec.decode(raw.value), raw.partition, raw.offset, raw.timestamp))
    return records


async def runs_of(broker: MemoryBroker) -> list[Run]:
    by_id: dict[str, list[Record]] = {}
    for record in records_of(broker):
        if isinstance(record.event, RunRequested | RunCancelRequested):
            by_id.setdefault(record.event.run_id, []).append(record)
    return [run for records in by_id.values() if (run := fold(records)) is not None]


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """The API over an empty log; ``settings`` go to `create_app`."""
    broker = MemoryBroker(partitions=4)
    projection = Projection(broker)
    registry = CollectorRegistry()
    exchanges: list[Exchange] = []
    settings.setdefault("observe", exchanges.append)
    app = create_app(MemoryCommands(broker), projection, MemoryTail(broker), registry=registry, **settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield World(broker, projection, client, registry, exchanges)


def problem(answer: httpx.Response, status: int, field: str | None = None) -> Any:
    """The error object of ``answer``, which must have this status and, where given, name this field."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) >= {"code", "message"}
    assert len(answer.content) < 2000, "an error must not echo what it was sent"
    assert field is None or error.get("field") == field, error
    return error


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC)
