"""An engine in the test's own process: workers over any log, a scripted model, tools that keep a ledger of what they did.

The log is the caller's; everything that decides or acts is the real thing.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from runfold.core.errors import LogError
from runfold.core.events import AgentDefinition, OwnerEvent, Record, SideEffect, ToolStatus, Unreadable, Usage
from runfold.core.reserving import Tariff
from runfold.core.run import Run
from runfold.core.shard import Ignored
from runfold.ports import Failover, Grant, Log, Model, ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from runfold.worker.resources import Resources
from runfold.worker.worker import Worker
from tests.changes import Changes

Body = Callable[[ToolCallRequest], Awaitable[ToolResult]]


def done(text: str) -> ToolResult:
    return ToolResult(ToolStatus.DONE, json.dumps(text))


@dataclass
class Ledger:
    """What happened outside the log, as the world would have seen it."""

    model_calls: list[tuple[str, int, int]] = field(default_factory=list)  # run, seq, attempt
    executions: Counter[str] = field(default_factory=Counter)  # by idempotency key


class ScriptedTools:
    """Every tool name exists unless ``missing``; each execution is one line of the ledger."""

    def __init__(self, ledger: Ledger, body: Body | None = None, policy: ToolPolicy | None = None) -> None:
        self.ledger, self.body = ledger, body
        self.default = policy or ToolPolicy(side_effect=SideEffect.WRITE)

    def policy(self, name: str) -> ToolPolicy:
        return self.default

    async def call(self, request: ToolCallRequest) -> ToolResult:
        self.ledger.executions[request.idempotency_key] += 1
        return await self.body(request) if self.body else done(f"result of {request.name}")


class TestAgents:
    __test__ = False

    def __init__(self, tools: ScriptedTools, names: Sequence[str] = ("default",)) -> None:
        self._tools, self.names = tools, names

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        if agent not in self.names:
            return None
        return AgentDefinition(
            name=agent,
            model=model or "scripted",
            max_tokens=max_tokens or 1000,
            system_json="[]",
            tools_json="[]",
            options_json="{}",
            hash="0" * 64,
        )

    def tools(self, agent: str) -> ScriptedTools:
        return self._tools


class FlatPrice:
    def cost(self, model: str, usage: Usage, at: int, modifiers: Mapping[str, str]) -> Decimal | None:
        return None if model.startswith("unknown") else Decimal("0.000001") * usage.total

    def tariff(self, definition: AgentDefinition, at: int) -> Tariff | None:
        each = Decimal("0.000001")
        return None if definition.model.startswith("unknown") else Tariff(each, each)


@dataclass
class NoRetry:
    delays: list[float | None] = field(default_factory=list)  # of successive failures; then None

    def delay(self, failures: int, retry_after: float | None, draw: float, *, overloaded: bool = False) -> float | None:
        return self.delays[failures - 1] if failures <= len(self.delays) else None


class Notes:
    """An observer that remembers, and wakes whoever waits for something to be so."""

    def __init__(self) -> None:
        self.applied_records: list[Record] = []
        self.ignored_records: list[tuple[Record, Ignored]] = []
        self.unreadable_records: list[Unreadable] = []
        self.resets: list[LogError] = []
        self.epochs: list[tuple[int, int]] = []
        self.ended: dict[str, Run] = {}
        self.resumed_runs: list[str] = []
        self.failovers: list[Failover | None] = []
        self.late_results: list[OwnerEvent] = []
        self.buried_records: list[Unreadable] = []
        self.commits: list[int] = []
        self._changes = Changes()

    def _note(self) -> None:
        self._changes.tell()

    async def until(self, true: Callable[[], bool], seconds: float = 20) -> None:
        """Wait until ``true()``, asked again at each thing that happens."""
        await self._changes.until(true, seconds)

    def applied(self, record: Record, run: Run) -> None:
        self.applied_records.append(record)
        if run.status.final:
            self.ended[run.id] = run
        self._note()

    def resumed(self, run: Run) -> None:
        self.resumed_runs.append(run.id)

    def ignored(self, record: Record, why: Ignored) -> None:
        self.ignored_records.append((record, why))
        self._note()

    def unreadable(self, delivery: Unreadable) -> None:
        self.unreadable_records.append(delivery)
        self._note()

    def acquired(self, partition: int, epoch: int, records: int, seconds: float) -> None:
        self.epochs.append((partition, epoch))
        self._note()

    def took_over(self, partition: int, fold_seconds: float, failover: Failover | None) -> None:
        self.failovers.append(failover)
        self._note()

    def late(self, run_id: str, result: OwnerEvent) -> None:
        self.late_results.append(result)
        self._note()

    def buried(self, delivery: Unreadable) -> None:
        self.buried_records.append(delivery)
        self._note()

    def released(self, partition: int) -> None:
        self._note()

    def reset(self, partition: int, error: LogError) -> None:
        self.resets.append(error)
        self._note()

    def committed(self, partition: int, events: int, commit_seconds: float, echo_seconds: float) -> None:
        self.commits.append(events)


class CountingModel:
    """A model whose calls are in the ledger."""

    def __init__(self, ledger: Ledger, inner: Model) -> None:
        self.ledger, self.inner = ledger, inner

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        self.ledger.model_calls.append((request.run_id, request.seq, request.attempt))
        return await self.inner.complete(request)


class Engine:
    """One worker over one log, holding the partitions it is told to; one grant lasts, unless ``silence_seconds`` say how long."""

    def __init__(
        self,
        log: Log,
        model: Model,
        ledger: Ledger,
        *,
        tools: ScriptedTools | None = None,
        retries: NoRetry | None = None,
        name: str = "worker",
        drain_seconds: float = 5.0,
        silence_seconds: float = 3600.0,
        **options: Any,
    ) -> None:
        self.notes = Notes()
        self.failures: list[BaseException] = []
        self.resources = Resources(
            worker=name,
            build="test",
            log=log,
            model=CountingModel(ledger, model),
            agents=TestAgents(tools or ScriptedTools(ledger)),
            pricing=FlatPrice(),
            retries=retries or NoRetry(),
            observer=self.notes,
            beat_seconds=0.05,
            silence_seconds=silence_seconds,
            **options,
        )
        self.worker = Worker(self.resources, drain_seconds, self.failures.append)

    def grant(self, partitions: Sequence[int], proof: bytes, leaving: Sequence[int] = (), *, age: float = 0.0) -> None:
        """As a keeper does that last looked at its lease ``age`` seconds ago."""
        self.worker.granted(Grant(frozenset(partitions), frozenset(leaving), proof, time.monotonic() - age))

    async def close(self) -> None:
        """As if the process were gone: nothing more is written."""
        await self.worker.close()


def answer(content: list[dict[str, Any]], stop: str, tokens: tuple[int, int] = (10, 5), model: str = "scripted") -> ModelAnswer:
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1])
    return ModelAnswer(content_json=json.dumps(content, separators=(",", ":")), stop_reason=stop, usage=usage, model=model)


def text(words: str) -> ModelAnswer:
    return answer([{"type": "text", "text": words}], "end_turn")


def tool_use(*uses: tuple[str, str, Any]) -> ModelAnswer:
    """A turn that asks for tools: (id, name, input) each."""
    return answer([{"type": "tool_use", "id": id_, "name": name, "input": input_} for id_, name, input_ in uses], "tool_use")


def turn_of(request: ModelRequest) -> int:
    """The number of the turn that a request asks for, from 1."""
    return 1 + sum(message.role == "assistant" for message in request.messages)


def turns(*answers: ModelAnswer) -> Callable[[ModelRequest], ModelAnswer]:
    """A script by turn, the same whoever asks and however often."""
    return lambda request: answers[turn_of(request) - 1]
