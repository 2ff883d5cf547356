"""A scene: one deployment of Runfold on real parts, for tests that kill it.

    async with scene(bootstrap, dsn, tmp_path, Script().then_text("done")) as stage:
        await stage.start("worker-A")
        run_id = await stage.post("go")
        await stage.ended(run_id)
        await stage.check(run_id)

A topic, a group and a database of its own; the strict fake of the Messages API; the projector in a thread and the API's own
application in the test's loop; workers are processes. What a test waits for is looked at again at each record of the log, each
side effect and each hold.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from runfold.api import create_app
from runfold.api.exchanges import Exchange
from runfold.cli.wiring.projector import project
from runfold.config import Settings
from runfold.core.events import Command, LeaseAcquired, OwnerEvent, Record, RunRequested
from runfold.log.codec import TYPE_HEADER, Codec, record_type
from runfold.log.kafka import KafkaCommands, KafkaLog, KafkaTail, create_topic
from runfold.log.kafka.message import Headers
from runfold.log.partitioner import partition_of
from runfold.log.wire import LANE_HEADER, key_of
from runfold.testing import FakeMessagesApi, Script
from runfold_projector.store import Reader
from tests.cases.harness_log import FollowedLog
from tests.cases.harness_processes import APP, CLI, Background, Processes
from tests.cases.harness_world import ADDRESS, Visit, World
from tests.cases.oracles import Evidence, check
from tests.changes import Changes
from tests.tables import assert_tables_equal_fold, dump

PATIENCE = 20.0  # seconds for what must come: long, because the machine may be busy
START_SECONDS = 60.0  # for a worker, which has much to import
LAG_SECONDS = 5.0  # O8
POLL_SECONDS = 0.02  # between two looks at what tells nobody that it changed

TEST_PROFILE = {  # short leases and short back-offs
    "RUNFOLD_SESSION_TIMEOUT_MS": "2000",
    "RUNFOLD_HEARTBEAT_MS": "200",
    "RUNFOLD_MODEL_ATTEMPTS": "3",
    "RUNFOLD_BACKOFF_BASE_SECONDS": "0.02",
    "RUNFOLD_BACKOFF_CAP_SECONDS": "0.1",
    "RUNFOLD_LOG_FORMAT": "ecs",
    "ANTHROPIC_API_KEY": "scripted",
}


class Scene(FollowedLog):
    """Made by `scene`."""

    def __init__(self, settings: Settings, partitions: int, model: FakeMessagesApi) -> None:
        super().__init__(partitions)
        self.settings, self.model = settings, model
        self._changes = Changes()
        self.world = World(self._changes.tell)
        self.planted: set[tuple[int, int]] = set()  # records that the test wrote in an owner's name
        self.projector = Background(lambda stop: project(settings, "public", stop))
        self._statuses: list[tuple[str, int]] = []
        self._codec = Codec()

    async def _open(self, stack: AsyncExitStack, root: Path) -> None:
        await stack.enter_async_context(self.world)
        stack.callback(self.world.release_all)
        marker = f"{ADDRESS}={self.world.address}"
        environment = {
            **TEST_PROFILE,
            **{f"RUNFOLD_{name.upper()}": str(getattr(self.settings, name)) for name in ("bootstrap", "topic", "group", "dsn")},
            "RUNFOLD_MODEL_BASE_URL": self.model.url,
            ADDRESS: self.world.address,
        }
        self.processes = Processes(root, environment, marker, self._changes.tell)
        await asyncio.to_thread(create_topic, self.settings, self.partitions, 1)
        self._reader = await KafkaLog.open(self.settings, self._codec)
        stack.push_async_callback(self._reader.close)
        for partition in range(self.partitions):
            stack.callback(asyncio.create_task(self._follow(partition)).cancel)
        self._commands = KafkaCommands(self.settings, self._codec)
        stack.push_async_callback(self._commands.close)
        self.projector.start()
        stack.push_async_callback(lambda: self.projector.stop())  # whichever it is by then
        self._http = await stack.enter_async_context(await self._client(stack))

    async def _client(self, stack: AsyncExitStack) -> httpx.AsyncClient:
        reads = Reader(self.settings.dsn, self.settings.topic)
        stack.push_async_callback(reads.close)
        tail = await KafkaTail.open(self.settings, self._codec)
        stack.push_async_callback(tail.close)
        app = create_app(self._commands, reads, tail, observe=self._exchanged)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://runfold")

    async def _follow(self, partition: int) -> None:
        async for batch in await self._reader.read(partition, 0):
            self.took(batch)
            self._changes.tell()

    def _exchanged(self, exchange: Exchange) -> None:
        self._statuses.append((f"{exchange.method} {exchange.route}", exchange.status))

    # ---- what the test does

    async def ask(self, method: str, path: str, **words: Any) -> httpx.Response:
        return await self._http.request(method, path, **words)

    async def post(self, text: str, **body: Any) -> str:
        """POST a run; its id."""
        answer = await self.ask("POST", "/api/runs", json={"input": text, "agent": "default", **body})
        assert answer.status_code == 202, answer.text
        assert answer.json()["status"] == "QUEUED"
        return str(answer.json()["id"])

    async def post_to(self, partition: int | None, text: str) -> str:
        """POST a run; as its id is not ours to choose, one for a certain partition is written to the topic instead; its id."""
        if partition is None:
            return await self.post(text)
        run_id = self.id_on(partition)
        await self.produce(RunRequested(run_id=run_id, agent="default", input=text))
        return run_id

    async def produce(self, command: Command) -> tuple[int, int]:
        """Write a command to the topic as anybody may; (partition, offset)."""
        return await self._commands.send(command)

    async def plant(self, event: OwnerEvent) -> tuple[int, int]:
        """Write an event in an owner's name, which nobody should do; (partition, offset)."""
        key = key_of(event)
        place = await self.put(partition_of(key, self.partitions), key, self._codec.encode(event), record_type(event))
        self.planted.add(place)
        return place

    async def put(
        self, partition: int, key: bytes | None, value: bytes | None, kind: bytes | None = None, lane: bytes | None = None
    ) -> tuple[int, int]:
        """Write any record, with ``lane`` in an owner's name; (partition, offset)."""
        headers: Headers = [(name, text) for name, text in ((TYPE_HEADER, kind), (LANE_HEADER, lane)) if text is not None]
        return await asyncio.to_thread(self._put, partition, key, value, headers)

    def _put(self, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> tuple[int, int]:
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.settings.bootstrap, "linger.ms": 0, "acks": "all"})
        producer.produce(
            self.settings.topic, value, key, partition, headers=headers,
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )  # fmt: skip
        assert producer.flush(PATIENCE) == 0
        return partition, offsets[0]

    async def start(self, *names: str, entry: Sequence[str] = CLI, app: str = APP, **settings: object) -> None:
        """Start workers side by side, until each owns a partition. ``settings`` are those of `Settings`."""
        before = {name: self.leases(name) for name in names}
        for name in names:
            environment = {f"RUNFOLD_{key.upper()}": str(value) for key, value in settings.items()}
            self.processes.start(name, entry=entry, app=app, environment=environment)
        await self.until(
            f"{names} to own partitions", lambda: all(self.leases(name) > before[name] for name in names), START_SECONDS
        )

    # ---- what the test waits for

    async def until(self, what: str, true: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait until ``true()``. Fails at once when a keeper ends that the test has not ended."""

        def answered() -> bool:
            if true():
                return True
            assert not self.processes.ends(), f"expected {what}\n{self._outline()}"
            return False

        try:
            await self._changes.until(answered, seconds)
        except TimeoutError:
            raise AssertionError(f"expected {what} within {seconds:g} s\n{self._outline()}") from None

    async def held(self, place: str, seconds: float = PATIENCE) -> Visit:
        """Wait until somebody is held at ``place``."""
        await self.until(f"somebody at {place!r}", lambda: place in self.world.held, seconds)
        return self.world.held[place]

    async def at_last(self, run_id: str, kind: str) -> None:
        """Wait until the last record of a run, as far as the test has read, is of this type."""
        await self.until(f"{kind} as the last record of {run_id}", lambda: self.kinds(run_id)[-1:] == [kind])

    async def ended(self, *run_ids: str, seconds: float = PATIENCE) -> None:
        """Wait until these runs have ended."""
        await self.until(f"{len(run_ids)} runs to end", lambda: not set(run_ids) - self.finished, seconds)

    async def projected(self) -> None:
        """Wait until the tables are level with the log."""
        await self._level("projector", self._unprojected)

    async def read(self) -> None:
        """Wait until the group's offsets are level with the log: workers have read it all, and their successors know."""
        await self._level("workers", self._unread)

    # ---- what there is to see

    async def rows(self) -> dict[str, dict[str, Any]]:
        """The table `run`, by id."""
        tables = await asyncio.to_thread(dump, self.settings.dsn)
        return {row["id"]: row for row in map(_with_text_ids, tables["run"])}

    async def ends(self) -> list[int]:
        """The offset that the next record of each partition will have."""
        return await asyncio.to_thread(self._ends)

    def _ends(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.settings.bootstrap, "group.id": "unused"})
        places = [TopicPartition(self.settings.topic, number) for number in range(self.partitions)]
        ends = [consumer.get_watermark_offsets(place, PATIENCE)[1] for place in places]
        consumer.close()
        return ends

    def executions(self, run_id: str) -> list[str]:
        """The keys of the ledger's lines that belong to a run, without the run's id."""
        return [line.key.partition("/")[2] for line in self.world.executions if line.key.startswith(run_id)]

    def hits(self, run_id: str) -> int:
        return self.model.hits(self.run(run_id).request.input)

    # ---- the oracles

    async def check(self, *run_ids: str, interruptions: int = 0) -> None:
        """All oracles that can speak while the scene goes on, about these runs."""
        await self.projected()
        check(await self._evidence(run_ids, interruptions))

    async def check_all(self, interruptions: int = 0) -> None:
        """All oracles, about everything; a worker must be running."""
        await self.projected()
        assert_tables_equal_fold(self.settings.dsn, self.log)
        await self.read()  # O8: it raises
        run_ids = {record.event.run_id for record in self.records() if not isinstance(record.event, LeaseAcquired)}
        check(await self._evidence(run_ids, interruptions))

    async def _evidence(self, run_ids: Collection[str], interruptions: int) -> Evidence:
        tables = await asyncio.to_thread(dump, self.settings.dsn)
        rows = {row["id"]: row for row in map(_with_text_ids, tables["run"]) if row["id"] in run_ids}
        steps = {id_: [row for row in tables["run_step"] if str(row["run_id"]) == id_] for id_ in rows}
        inputs = {row["input"] for row in rows.values()}
        return Evidence(
            records=[record for record in self.records() if _concerns(record, run_ids)],
            planted=frozenset(self.planted),
            interruptions=interruptions,
            hits=[hit for hit in self.model.requests if hit.conversation in inputs],
            executions=[line for line in self.world.executions if line.key.partition("/")[0] in run_ids],
            rows=rows,
            steps=steps,
            timelines={id_: (await self.ask("GET", f"/api/runs/{id_}/timeline")).json() for id_ in rows},
            output=self.processes.output(),
            statuses=self._statuses,
            ended=self.processes.accidents(),
        )

    async def _level(self, who: str, behind: Callable[[], Any]) -> None:
        deadline = asyncio.get_running_loop().time() + LAG_SECONDS
        while left := {number: records for number, records in (await behind()).items() if records}:
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"O8: {LAG_SECONDS:g} s after the end the {who} have not read {left} (records by partition)"
            await asyncio.sleep(POLL_SECONDS)

    async def _unprojected(self) -> dict[int, int]:
        rows = (await asyncio.to_thread(dump, self.settings.dsn))["projection_offset"]
        return self._behind({row["partition"]: row["next_offset"] for row in rows})

    async def _unread(self) -> dict[int, int]:
        return self._behind({number: (await self._reader.position(number)).next for number in range(self.partitions)})

    def _behind(self, positions: Mapping[int, int]) -> dict[int, int]:
        return {
            number: sum(delivery.offset >= positions.get(number, 0) for delivery in deliveries)
            for number, deliveries in enumerate(self.log)
        }

    def _outline(self) -> str:
        """The log's end, for the message of a test that waits in vain."""
        lines = [f"{record.partition}/{record.offset} {record.event}"[:200] for record in self.records()[-8:]]
        return "\n".join([*lines, f"held: {list(self.world.held)}", *self.model.violations, *self.processes.accidents()])


def _with_text_ids(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"id": str(row["id"])}


def _concerns(record: Record, run_ids: Collection[str]) -> bool:
    return isinstance(record.event, LeaseAcquired) or record.event.run_id in run_ids


@contextmanager
def _database(postgres: str, name: str) -> Iterator[str]:
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"create database {name}")
    yield postgres.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)")


@asynccontextmanager
async def scene(
    bootstrap: str, postgres: str, root: Path, scripts: Script | Mapping[str, Script], *, partitions: int = 4
) -> AsyncIterator[Scene]:
    """Everything but the workers. ``postgres`` is the server's DSN. At the end nothing may be left of any process."""
    async with AsyncExitStack() as stack:
        name = f"case_{uuid4().hex[:8]}"
        dsn = stack.enter_context(_database(postgres, name))
        settings = Settings(bootstrap=bootstrap, dsn=dsn, topic=name, group=name)
        model = await stack.enter_async_context(FakeMessagesApi(scripts))
        stage = Scene(settings, partitions, model)
        await stage._open(stack, root)
        try:
            yield stage
        finally:
            stage.world.release_all()
            orphans = await stage.processes.close()
        assert not orphans, orphans
