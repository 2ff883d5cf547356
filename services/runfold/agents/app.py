"""The agents that a worker serves."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from runfold.agents.agent import Agent
from runfold.core.errors import ConfigError
from runfold.core.events import AgentDefinition
from runfold.ports import Tools
from runfold.tools import Executor, Registry, Threads

DEFAULT = "default"  # what a run asks for that names no agent


class App:
    """Agents by name; the tools of all of them share one set of threads. The first one answers to "default", unless another one
    is called so.

    Raises `ConfigError` for a name given twice, and for no agent at all."""

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.agents: Mapping[str, Agent] = MappingProxyType(_by_name(agents))
        self._threads = Threads()
        self._executors = {name: Executor(agent.registry, self._threads) for name, agent in self.agents.items()}
        first = next(iter(self.agents))
        self._served = {DEFAULT: first} | {name: name for name in self.agents}

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        """What a new run of this agent starts with, with what its request overrides. None: this app has no such agent."""
        name = self._served.get(agent)
        return None if name is None else self.agents[name].definition(model=model, max_tokens=max_tokens)

    def tools(self, agent: str) -> Tools:
        """The tools of an agent. Of one that this app does not have (any more): none, and each call's result says so."""
        found = self._executors.get(self._served.get(agent, ""))
        return found or Executor(Registry(), self._threads, f"This worker has no agent {agent[:80]!r}. ")

    def __str__(self) -> str:
        return ", ".join(self.agents)

    def __repr__(self) -> str:
        return f"<app of {self}>"


def _by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise ConfigError(f"App: expected an Agent, got {agent!r}")
        if agent.name in found:
            raise ConfigError(f"App: two agents are called {agent.name!r}")
        found[agent.name] = agent
    if not found:
        raise ConfigError("App: expected one Agent at least")
    return found
