"""A worker process that a test can hold at any point of a run. Started by `main`, with the words of `runfold worker`.

It is `runfold worker`, with decorators around the log, the model and the tools, and with a keeper that never tires of replacing
workers. The places, in order, of a run of one tool call:

    before RunStarted                    read, and nothing of it written
    call model 1 / model 1 answered      the request is not sent / the answer is whole, and not in the log
    after ModelStepCompleted 1           in the log, in a transaction that ended there
    call tool a / effect a / tool a returned
    after ToolStepFinished 2
    committing RunFinished               in the broker, in an open transaction
    after RunFinished
"""

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from confluent_kafka import Producer

from runfold import cli
from runfold.cli.wiring import keeper, worker
from runfold.cli.wiring.keeper import WorkerSpec
from runfold.core.events import AgentDefinition, OwnerEvent, Unreadable
from runfold.log.codec import TYPE_HEADER
from runfold.ports import (
    Appender,
    Log,
    Model,
    ModelAnswer,
    ModelRequest,
    Position,
    Reading,
    ToolCallRequest,
    ToolPolicy,
    ToolResult,
    Tools,
)
from runfold.worker import lease
from runfold.worker.resources import Agents, Resources
from tests.cases.harness_world import come_by, held, is_held, pass_by


class HeldLog:
    """A log whose appends end where the test holds: what comes after goes into a transaction of its own."""

    def __init__(self, inner: Log) -> None:
        self._inner = inner

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    async def fence(self, partition: int) -> Appender:
        return HeldAppender(await self._inner.fence(partition))

    async def position(self, partition: int) -> Position:
        return await self._inner.position(partition)

    async def read(self, partition: int, offset: int) -> Reading:
        return await self._inner.read(partition, offset)

    async def dead_letter(self, unreadable: Unreadable) -> None:
        await self._inner.dead_letter(unreadable)

    async def close(self) -> None:
        await self._inner.close()


class HeldAppender:
    def __init__(self, inner: Appender) -> None:
        self._inner = inner

    async def append(self, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        names = [_name(event) for event in events]
        places = await held([f"{when} {name}" for when in ("before", "after") for name in names])
        begun = 0
        for end, name in enumerate(names, 1):
            for place, cut in ((f"before {name}", end - 1), (f"after {name}", end)):
                if place in places:
                    if cut > begun:
                        await self._inner.append(events[begun:cut], position, proof)
                    begun = cut
                    await come_by(place)
        if begun < len(events) or not events:
            await self._inner.append(events[begun:], position, proof)

    def drop(self) -> None:
        self._inner.drop()


def _name(event: OwnerEvent) -> str:
    seq = getattr(event, "seq", None)
    return type(event).__name__ if seq is None else f"{type(event).__name__} {seq}"


class HeldProducer(Producer):
    """Holds a transaction that ends a run, when its records are in the broker and the commit is not sent."""

    ends_a_run = False

    def produce(self, *args: Any, **words: Any) -> None:
        self.ends_a_run = self.ends_a_run or (TYPE_HEADER, b"RunFinished") in words["headers"]
        super().produce(*args, **words)

    def commit_transaction(self, *args: Any) -> None:
        if self.ends_a_run and is_held("committing RunFinished"):
            assert super().flush(5) == 0
            pass_by("committing RunFinished")
        self.ends_a_run = False
        super().commit_transaction(*args)


class HeldModel:
    def __init__(self, inner: Model) -> None:
        self._inner = inner

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        await come_by(f"call model {request.seq}")
        answer = await self._inner.complete(request)
        await come_by(f"model {request.seq} answered")
        return answer


class HeldTools:
    def __init__(self, inner: Tools) -> None:
        self._inner = inner

    def policy(self, name: str) -> ToolPolicy:
        return self._inner.policy(name)

    async def call(self, request: ToolCallRequest) -> ToolResult:
        await come_by(f"call tool {request.name}")
        result = await self._inner.call(request)
        await come_by(f"tool {request.name} returned")
        return result


class HeldAgents:
    def __init__(self, inner: Agents) -> None:
        self._inner = inner

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        return self._inner.definition(agent, model=model, max_tokens=max_tokens)

    def tools(self, agent: str) -> Tools:
        return HeldTools(self._inner.tools(agent))


# ---- the processes


def work(pipe: Connection, spec: WorkerSpec) -> None:
    """`worker.work`, with what the cases put around its ports."""

    async def resources(*words: Any) -> Resources:
        made = await worker.resources(*words)
        made.log, made.model, made.agents = HeldLog(made.log), HeldModel(made.model), HeldAgents(made.agents)
        return made

    with mock.patch("runfold.log.kafka.appender.Producer", HeldProducer):
        worker.work(pipe, spec, resources)


def main(module: str = __name__) -> None:
    with (
        mock.patch.object(keeper, "WORKER", module),
        mock.patch.object(lease, "DEATHS", 1000),
    ):
        cli.main()
