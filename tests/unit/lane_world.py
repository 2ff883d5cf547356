"""A lane over one partition of the in-memory log, and an owner for it that reads and does nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from runfold.core.errors import LogError
from runfold.core.events import CommandRejected, OwnerEvent, Record, Rejection, ToolStatus, ToolStepFinished
from runfold.log.memory import MemoryBroker, MemoryLog
from runfold.ports import Grant, Position
from runfold.worker.lane import Lane
from runfold.worker.resources import Resources
from tests.changes import Changes
from tests.contract.log_suite import run_on
from tests.engine import FlatPrice, NoRetry, Notes

PATIENCE = 20.0
BEAT = 0.05
ECHO = 0.3  # seconds: where an echo is waited for in vain
RUN = run_on(0)


def event(name: str = "c") -> CommandRejected:
    return CommandRejected(run_id=RUN, epoch=0, command_id=name, reason=Rejection.RUN_FINISHED)


def large(size: int) -> ToolStepFinished:
    return ToolStepFinished(
        run_id=RUN,
        epoch=0,
        seq=1,
        model_seq=1,
        tool_use_id="a",
        attempt=1,
        status=ToolStatus.DONE,
        content_json=f'"{"x" * size}"',
        latency_ms=0,
    )


class World:
    """A broker with one partition, a lane that serves it, and its owner: it reads, and it does nothing else."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(1)
        self.broker.group.join("me")
        self.broker.group.take("me")
        self.log = MemoryLog(self.broker)
        self.notes = Notes()
        unused = cast(Any, None)
        self.resources = Resources(
            worker="w",
            build="test",
            log=self.log,
            model=unused,
            agents=unused,
            pricing=FlatPrice(),
            retries=NoRetry(),
            observer=self.notes,
            beat_seconds=BEAT,
            echo_seconds=PATIENCE,
        )
        self.now = self.granted()
        self.lane = Lane(0, self.resources, lambda: self.now, self)
        self.transactions: list[list[OwnerEvent]] = []
        self.errors: list[LogError] = []
        self.listening = asyncio.Event()
        self.listening.set()
        self.next = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._changes = Changes()

    def granted(self, **facts: Any) -> Grant:
        given = {"partitions": frozenset({0}), "proof": self.broker.group.proof("me"), "at": time.monotonic()}
        self.now = Grant(**{**given, **facts})
        return self.now

    def grant(self, **facts: Any) -> None:
        self.granted(**facts)
        self.lane.granted()

    def start(self) -> None:
        self.tasks.append(asyncio.create_task(self.lane.run()))

    async def until(self, true: Callable[[], bool]) -> None:
        await self._changes.until(true, PATIENCE)

    def note(self) -> None:
        self._changes.tell()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.log.close()

    # ---- the owner

    def position(self) -> Position:
        return Position(self.next, 0)

    async def fenced(self) -> None:
        if len(self.tasks) == 1:
            self.tasks.append(asyncio.create_task(self.read()))

    def interrupted(self, error: LogError) -> None:
        self.errors.append(error)
        self.note()

    async def read(self) -> None:
        async for batch in await self.log.read(0, 0):
            for delivery in batch:
                assert isinstance(delivery, Record)
                await self.listening.wait()
                self.next = delivery.offset + 1
                self.lane.read_back(delivery.event)
            self.lane.moved()
            self.note()

    # ---- what is in the log

    async def committed(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        """As the broker's ``after_commit``."""
        self.transactions.append(list(events))
        self.note()

    def names(self) -> list[list[str]]:
        """Of the events of each transaction."""
        return [[getattr(event, "command_id", "marker") for event in events] for events in self.transactions]


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    world = World()
    world.broker.after_commit = world.committed
    yield world
    await world.close()


async def owning(world: World) -> World:
    world.start()
    await world.until(lambda: world.names() == [["marker"]] and world.lane.idle)
    return world


def failing(error: Callable[[], LogError], times: int = 1) -> Callable[[int, Sequence[OwnerEvent]], Any]:
    """A ``before_commit`` that fails so often."""
    left = iter(range(times))

    async def before(partition: int, events: Sequence[OwnerEvent]) -> None:
        if next(left, None) is not None:
            raise error()

    return before


async def some_ticks() -> None:
    """Let the loop run whatever could run now."""
    for _ in range(20):
        await asyncio.sleep(0)
