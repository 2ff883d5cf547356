"""Workers over one partition of the in-memory log, one after the other or side by side, and what can be made to wait in them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from runfold.core.events import Event, Record, RunRequested
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog
from runfold.log.wire import read
from runfold.model.scripted import ScriptedModel
from runfold.ports import Model, ModelAnswer, ModelRequest, ToolCallRequest, ToolResult
from tests.engine import Body, Engine, Ledger, ScriptedTools, done, text, tool_use, turns

PATIENCE = 20.0
TOOL_THEN_TEXT = (tool_use(("a", "act", {"n": 1})), text("done"))


class Held:
    """Something that waits until it is released, and tells when it is there."""

    def __init__(self) -> None:
        self.entered, self.released = asyncio.Event(), asyncio.Event()

    async def hold(self) -> None:
        self.entered.set()
        await self.released.wait()


class Stage:
    """A broker with one partition, and workers one after the other, or side by side."""

    def __init__(self) -> None:
        self.broker, self.ledger = MemoryBroker(1), Ledger()
        self.engines: list[Engine] = []
        self.broker.group.join("group")  # one member stands for all of it: who owns what, the tests say

    @property
    def proof(self) -> bytes:
        return self.broker.group.proof("group")

    def engine(self, model: Model | None = None, body: Body | None = None, **options: Any) -> Engine:
        tools = ScriptedTools(self.ledger, body)
        name = f"worker-{len(self.engines) + 1}"
        scripted = model or ScriptedModel(turns(*TOOL_THEN_TEXT))
        engine = Engine(MemoryLog(self.broker), scripted, self.ledger, tools=tools, name=name, **options)
        self.engines.append(engine)
        return engine

    async def owner(self, model: Model | None = None, body: Body | None = None, **options: Any) -> Engine:
        engine = self.engine(model, body, **options)
        engine.grant([0], self.proof)
        await engine.notes.until(lambda: len(engine.notes.epochs) == 1)
        return engine

    async def request(self, **fields: Any) -> str:
        id_ = str(uuid4())
        await MemoryCommands(self.broker).send(RunRequested(**{"run_id": id_, "agent": "default", "input": "go", **fields}))
        return id_

    def log(self, *kinds: type[Event]) -> list[Event]:
        """What is committed, of these kinds or of all."""
        found = [read(stored.raw, self.broker.codec, 1) for stored in self.broker.partitions[0].visible(0)]
        events = [record.event for record in found if isinstance(record, Record)]
        return [event for event in events if not kinds or isinstance(event, kinds)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Until the log is so."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                await self.broker.partitions[0].changed.wait()

    async def close(self) -> None:
        for engine in self.engines:
            await engine.close()
        assert [failure for engine in self.engines for failure in engine.failures] == []


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.close()


async def let_go(engine: Engine) -> None:
    """Until the worker holds nothing any more."""
    async with asyncio.timeout(PATIENCE):
        while engine.worker.held:
            await asyncio.wait(engine.worker._letting_go.values())
            await asyncio.sleep(0)


async def ticks() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def holding_tool(held: Held) -> Body:
    async def body(request: ToolCallRequest) -> ToolResult:
        await held.hold()
        return done("at last")

    return body


def holding_model(held: Held) -> ScriptedModel:
    """Holds its first turn."""

    async def reply(request: ModelRequest) -> ModelAnswer:
        if len(request.messages) == 1:
            await held.hold()
        return turns(*TOOL_THEN_TEXT)(request)

    return ScriptedModel(reply)
