"""The stage for cases that need the stub and no broker: real workers over the in-memory log, the real SDK and the strict fake
API over loopback HTTP, real tools. Only the keepers are played, each by a `Seat` on the same loop.

    async with stage(Script().then_tool_use("a", "note", {}).then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "note"))
        run = await scene.play("go")
        assert scene.asked("go", 2)["messages"] == [...]

At the end of the block every oracle has been asked, and no exception has got out of a worker.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, TypeVar
from uuid import uuid4

from runfold.agents import Agent, App
from runfold.core.events import Delivery, Event, Limits, OwnerEvent, Record, RunCancelRequested, RunRequested, Status
from runfold.core.run import Run
from runfold.log.memory import MemoryBroker, MemoryCommands
from runfold.log.wire import read
from runfold.ports import Commands
from runfold.testing import FakeMessagesApi, Script
from runfold.testing.fake_api.markers import unmarked
from runfold.tools import Tool, ToolContext, tool
from tests.cases.engine_process import BACKOFF, Process
from tests.cases.oracles import Evidence, Execution, check
from tests.engine import Notes

MODEL = "claude-sonnet-4-6"  # it has a price
PATIENCE = 20.0  # seconds that a test waits for what must come: long, because the machine may be busy
E = TypeVar("E", bound=Event)
AnyTool = Tool[..., Any]


class Ledger(list[Execution]):
    """What tools did in the world, in order."""

    def enter(self, context: ToolContext, given: object = None) -> None:
        self.append(Execution(context.idempotency_key, json.dumps(given, default=repr), os.getpid()))

    def count(self, ending: str) -> int:  # type: ignore[override]  # of what, is a matter of the ledger
        """Executions under keys that end so: ``/1/a``."""
        return sum(execution.key.endswith(ending) for execution in self)


def recording(ledger: Ledger, name: str, body: Callable[[ToolContext], Any] = lambda context: "ok", **options: Any) -> AnyTool:
    """A tool that writes one line into the ledger and then does as ``body``. It can be repeated, unless ``options`` say not."""

    @tool(name=name, **{"idempotency": "optional", **options})
    async def act(context: ToolContext, n: int = 0) -> Any:
        ledger.enter(context, n)
        result = body(context)
        return await result if isawaitable(result) else result

    return act


class Sightings(Notes):
    """Of all workers together, with the latest state of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Run] = {}

    def applied(self, record: Record, run: Run) -> None:
        self.runs[run.id] = run
        super().applied(record, run)

    def resumed(self, run: Run) -> None:
        self.runs[run.id] = run
        super().resumed(run)
        self.wake()

    def committed(self, partition: int, events: int, commit_seconds: float, echo_seconds: float) -> None:
        super().committed(partition, events, commit_seconds, echo_seconds)
        self.wake()

    def wake(self) -> None:
        self._note()


class Scene:
    """A broker, a fake API, an app and any number of workers."""

    def __init__(self, api: FakeMessagesApi, partitions: int) -> None:
        self.api, self.broker = api, MemoryBroker(partitions)
        self.commands: Commands = MemoryCommands(self.broker)
        self.ledger, self.notes = Ledger(), Sightings()
        self.accidents: list[BaseException] = []
        self.processes: list[Process] = []
        self.interruptions = 0  # kills and lost leases so far: each may cost a run one call
        self.app = App([Agent("default", MODEL, max_tokens=1000)])

    # ---- before

    def serve(self, *tools: AnyTool, agents: Sequence[Agent] = (), **fields: Any) -> None:
        """The agent "default" with these tools, and others; for workers that are started later."""
        self.app = App([Agent("default", **{"model": MODEL, "max_tokens": 1000, "tools": tools, **fields}), *agents])

    def start(self, name: str = "", **options: Any) -> Process:
        """One more worker; ``options`` as `Process` takes them."""
        name = name or f"worker-{len(self.processes) + 1}"
        process = Process(name, self.broker, self.api.url, self.app, self.notes, self.accident, options)
        self.processes.append(process)
        return process

    def accident(self, error: BaseException) -> None:
        """A worker cannot go on: the process would end."""
        self.accidents.append(error)
        self.notes.wake()

    # ---- what happens

    async def submit(self, text: str = "go", *, agent: str = "default", run_id: str = "", **fields: Any) -> str:
        """Ask for a run; ``fields`` are of `Limits` or of `RunRequested`. Its id."""
        limits = {name: fields.pop(name) for name in list(fields) if name in Limits.__dataclass_fields__}
        request = RunRequested(run_id=run_id or str(uuid4()), agent=agent, input=text, limits=Limits(**limits), **fields)
        await self.commands.send(request)
        return request.run_id

    async def cancel(self, run_id: str) -> None:
        await self.commands.send(RunCancelRequested(run_id=run_id, command_id=str(uuid4()), requested_by="test"))

    async def play(self, text: str = "go", **fields: Any) -> Run:
        """One run from its request to its end or suspension, with a worker where there is none."""
        if not self.processes:
            self.start()
        return await self.settled(await self.submit(text, **fields))

    async def settled(self, run_id: str) -> Run:
        """The run once it has ended or waits for somebody."""
        await self.until(run_id, lambda run: run.status.final or run.status is Status.SUSPENDED, "ends or waits for somebody")
        return self.notes.runs[run_id]

    async def until(self, run_id: str, true: Callable[[Run], bool], what: str = "is as the test wants it") -> None:
        runs = self.notes.runs
        await self._until(
            lambda: run_id in runs and true(runs[run_id]),
            lambda: f"run {run_id} {what}; it is {runs[run_id].status if run_id in runs else 'unknown to every worker'}",
        )

    async def _until(self, true: Callable[[], bool], what: Callable[[], str]) -> None:
        """``what`` is waited for, in words; they are asked for when it did not come."""
        try:
            await self.notes.until(lambda: bool(self.accidents) or true(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"waited {PATIENCE:.0f} s in vain until {what()}") from None
        if self.accidents:
            raise self.accidents[0]

    async def logged(self, kind: type[Event], run_id: str, **fields: Any) -> None:
        """Until a worker has read such an event."""

        def is_it(event: Event) -> bool:
            return isinstance(event, kind) and all(
                getattr(event, name) == value for name, value in {"run_id": run_id, **fields}.items()
            )

        await self._until(
            lambda: any(is_it(record.event) for record in self.notes.applied_records),
            lambda: f"run {run_id} has a {kind.__name__} with {fields}",
        )

    async def kill(self, process: Process) -> None:
        self.interruptions += 1
        self.processes.remove(process)
        await process.kill()

    async def restart(self, **options: Any) -> Process:
        """Kill the only worker and start the next one."""
        (process,) = self.processes
        await self.kill(process)
        return self.start(f"{process.name}'", **options)

    def kill_at(self, event: Callable[[OwnerEvent], bool], *, committed: bool) -> "asyncio.Future[None]":
        """Kill the only worker around the next transaction with such an event; done when the worker is gone."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def too_late() -> None:
            if not gone.done():
                gone.set_exception(TimeoutError("there was no such transaction"))

        asyncio.get_running_loop().call_later(PATIENCE, too_late)

        async def die() -> None:
            (process,) = self.processes
            await self.kill(process)
            self.broker.marker_delay = 0.0  # whoever fences next settles it
            gone.set_result(None)

        async def before(partition: int, events: Sequence[OwnerEvent]) -> None:
            if any(map(event, events)):
                self.broker.before_commit = _nothing
                if not committed:
                    await self._hang_and(die)
                self.broker.marker_delay = 3600.0  # it is committed, and this worker never sees it
                self.broker.after_commit = after

        async def after(partition: int, events: Sequence[OwnerEvent]) -> None:
            self.broker.after_commit = _nothing
            await self._hang_and(die)

        self.broker.before_commit = before
        return gone

    async def _hang_and(self, die: Callable[[], Awaitable[None]]) -> None:
        self._death = asyncio.ensure_future(die())
        await asyncio.Event().wait()

    # ---- what there is to see

    def records(self) -> list[Delivery]:
        """Everything that is committed."""
        broker = self.broker
        return [
            read(stored.raw, broker.codec, len(broker.partitions))
            for partition in broker.partitions
            for stored in partition.visible(0)
        ]

    def log(self, run_id: str, kind: type[E]) -> list[E]:
        """The committed events of one kind of a run, in order."""
        events = [record.event for record in self.records() if isinstance(record, Record)]
        return [event for event in events if isinstance(event, kind) and getattr(event, "run_id", "") == run_id]

    def asked(self, text: str, n: int) -> dict[str, Any]:
        """MR[n]: the body of the n-th request of the conversation that begins with ``text``, without its cache markers."""
        body: dict[str, Any] = unmarked([hit.body for hit in self.api.requests if hit.conversation == text][n - 1])
        return body

    def live(self) -> dict[str, Run]:
        """What the workers hold in memory, and held of what has ended."""
        partitions = [partition for process in self.processes for partition in process.worker.partitions.values()]
        flows = [flow for partition in partitions if partition.owned for flow in partition.flows.values()]
        return self.notes.ended | {flow.run.id: flow.run for flow in flows}

    async def quiet(self) -> None:
        """Until the workers have read all there is: a fold of the log and their memory can be compared."""

        def caught_up() -> bool:
            held = [partition for process in self.processes for partition in process.worker.partitions.values()]
            return all(partition.lane.idle and self._read(partition.number, partition.shard.next_offset) for partition in held)

        await self._until(caught_up, lambda: "every worker has read all that is committed")

    def _read(self, partition: int, next_offset: int) -> bool:
        return not any(self.broker.partitions[partition].visible(next_offset))

    def check(self, **facts: Any) -> None:
        """All oracles that can see something here."""
        seen = {"records": self.records(), "hits": self.api.requests, "executions": self.ledger, "live": self.live()}
        check(Evidence(**{**seen, "interruptions": self.interruptions, "attempts": BACKOFF.attempts, **facts}))
        assert not self.accidents


async def _nothing(partition: int, events: Sequence[OwnerEvent]) -> None:
    pass


@asynccontextmanager
async def stage(
    scripts: Script | Mapping[str, Script],
    *,
    partitions: int = 1,
    unique_ids: bool = True,
    caching: bool = False,
    **facts: Any,
) -> AsyncIterator[Scene]:
    """A scene whose oracles are asked at the end; ``facts`` are fields of `Evidence` that they must know."""
    async with FakeMessagesApi(scripts, unique_ids=unique_ids, caching=caching) as api:
        scene = Scene(api, partitions)
        try:
            yield scene
            await scene.quiet()
            scene.check(**facts)
        finally:
            for process in scene.processes:
                await process.kill()
