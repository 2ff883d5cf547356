"""What runs touch outside the log: a model and tools that are slow, fail, hang, or kill who calls them. All of it is seen."""

import asyncio
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Protocol

from runfold.core.errors import ModelFailure
from runfold.core.events import AgentDefinition, Reason, SideEffect, ToolStatus, Usage
from runfold.core.reserving import Tariff
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from runfold.simulation.broker import die
from runfold.simulation.chance import Chance, Rates
from runfold.simulation.script import MAX_TOKENS, Script

AGENT = "simulated"
MODEL_TIMEOUT = 30.0
TOOL_TIMEOUT = 10.0
POLICIES = {
    "read": ToolPolicy(SideEffect.READ),
    "write": ToolPolicy(SideEffect.WRITE),
    "charge": ToolPolicy(SideEffect.EXTERNAL, repeatable=False),
    "alone": ToolPolicy(SideEffect.WRITE, parallel=False),
    "flaky": ToolPolicy(SideEffect.READ),
    "slow": ToolPolicy(SideEffect.WRITE),
    "stuck": ToolPolicy(SideEffect.WRITE, repeatable=False),
    "deadly": ToolPolicy(SideEffect.READ),
}
FAILURES = (
    (Reason.RATE_LIMITED, True, 2.0),
    (Reason.OVERLOADED, True, None),
    (Reason.CONNECTION, True, None),
    (Reason.API_ERROR, True, None),
    (Reason.MODEL_REQUEST, False, None),
    (Reason.MODEL_ACCESS, False, None),
)
FAILURE_WEIGHTS = (6, 6, 6, 6, 1, 1)


class Watcher(Protocol):
    """Who sees each call when it is made."""

    def model_called(self, request: ModelRequest) -> None: ...

    def tool_called(self, request: ToolCallRequest, policy: ToolPolicy) -> None: ...


class SimulatedModel:
    """A `runfold.ports.Model` that plays the scripts of all runs."""

    def __init__(self, scripts: dict[str, Script], chance: Chance, rates: Rates, watcher: Watcher) -> None:
        self._scripts, self._chance, self.rates, self._watcher = scripts, chance, rates, watcher

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        chance = self._chance
        self._watcher.model_called(request)
        if chance.happens(self.rates.crash_in_model_call):
            await asyncio.sleep(chance.uniform(0, 1))
            await die()
        if chance.happens(0.02):
            await asyncio.sleep(MODEL_TIMEOUT)
            raise ModelFailure(Reason.MODEL_TIMEOUT, "it never answered", retryable=True)
        await asyncio.sleep(chance.seconds(0.5, 20))
        if chance.happens(0.005):
            raise RuntimeError("a fault of the model adapter")
        if chance.happens(0.08):
            reason, retryable, after = chance.choices(FAILURES, FAILURE_WEIGHTS)[0]
            raise ModelFailure(reason, "as the seed has it", retryable=retryable, retry_after=after, usage=Usage(input_tokens=1))
        return self._scripts[request.run_id].answer(request)


class SimulatedTools:
    """A `runfold.ports.Tools`."""

    def __init__(self, chance: Chance, rates: Rates, watcher: Watcher) -> None:
        self._chance, self.rates, self._watcher = chance, rates, watcher
        self._tame = rates.kills_nobody

    def policy(self, name: str) -> ToolPolicy:
        return POLICIES.get(name, ToolPolicy())

    async def call(self, request: ToolCallRequest) -> ToolResult:
        if request.name not in POLICIES:
            return ToolResult(ToolStatus.ERROR, '"there is no such tool"')
        chance = self._chance
        self._watcher.tool_called(request, self.policy(request.name))
        await self._maybe_crash()
        if request.name == "deadly" and not self._tame:
            await die()
        if request.name == "stuck" and chance.happens(0.5):
            await asyncio.sleep(TOOL_TIMEOUT)
            return ToolResult(ToolStatus.TIMED_OUT, '"timed out"')
        await asyncio.sleep(chance.seconds(3 if request.name == "slow" else 0.1, TOOL_TIMEOUT))
        await self._maybe_crash()
        if request.name == "flaky" and chance.happens(0.5):
            return ToolResult(ToolStatus.ERROR, '"it went wrong"')
        return ToolResult(ToolStatus.DONE, json.dumps(f"result of {request.idempotency_key}"))

    async def _maybe_crash(self) -> None:
        if self._chance.happens(self.rates.crash_in_tool):
            await die()


class SimulatedAgents:
    """The one agent there is."""

    def __init__(self, tools: SimulatedTools) -> None:
        self._tools = tools

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        if agent != AGENT:
            return None
        return AgentDefinition(
            name=agent,
            model=model or "simulated",
            max_tokens=max_tokens or MAX_TOKENS,
            system_json="[]",
            tools_json="[]",
            options_json="{}",
            hash="0" * 64,
        )

    def tools(self, agent: str) -> SimulatedTools:
        return self._tools


class FlatPrice:
    """Each token costs a millionth of a dollar."""

    def cost(self, model: str, usage: Usage, at: int, modifiers: Mapping[str, str]) -> Decimal | None:
        return Decimal("0.000001") * usage.total

    def tariff(self, definition: AgentDefinition, at: int) -> Tariff | None:
        return Tariff(Decimal("0.000001"), Decimal("0.000001"))
