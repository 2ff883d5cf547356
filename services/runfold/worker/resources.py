"""What every partition of a worker process shares."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from runfold.core.events import AgentDefinition, Usage
from runfold.core.reserving import Tariff
from runfold.model.breaker import Breakers
from runfold.ports import Live, Log, Model, Observer, Tools
from runfold.worker.slots import Slots


class Agents(Protocol):
    """The agents this worker serves. ``str`` of it names them."""

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        """The agent as a new run is to have it, with what its request overrides. None: there is no such agent here.

        Raises `ConfigError` for an override that cannot be used."""
        ...

    def tools(self, agent: str) -> Tools:
        """Also for an agent that is gone: then every call is answered that its tool does not exist."""
        ...


class Pricing(Protocol):
    def cost(self, model: str, usage: Usage, at: int, modifiers: Mapping[str, str]) -> Decimal | None:
        """USD of one answer at broker ms ``at``; None when the model, or one of ``modifiers``, has no known price."""
        ...

    def tariff(self, definition: AgentDefinition, at: int) -> Tariff | None:
        """The most that a call by this definition may cost; None when that is not known."""
        ...


class Retries(Protocol):
    def delay(self, failures: int, retry_after: float | None, draw: float, *, overloaded: bool = False) -> float | None:
        """Seconds before the next attempt; None when they are used up. ``draw`` is uniform in [0, 1).

        ``failures``: of this step so far, of this kind: overloads are one, all others the other."""
        ...


@dataclass(slots=True)
class Resources:
    """One per worker process."""

    worker: str  # its name in leases, rows and logs
    build: str
    log: Log
    model: Model
    agents: Agents
    pricing: Pricing
    retries: Retries
    observer: Observer
    live: Live | None = None  # where the text of model calls is shown while it arrives; None: nowhere
    ends: Callable[[], Mapping[int, int]] = dict  # by partition: where the log ends, uncommitted records counted, where known
    read_at: Callable[[], float] = time.monotonic  # the last sign of life of what reads the log
    heard_at: Callable[[], float] = time.monotonic  # the last answer of the brokers that hold the log
    max_model_calls: int = 256
    max_tool_calls: int = 256
    echo_seconds: float = 5.0  # an append that is not read back by then is uncertain; a marker: without any record before it
    beat_seconds: float = 0.25  # the group's heartbeat
    silence_seconds: float = 3.0  # a grant older than this starts nothing new
    overlap: bool = False  # whether what is harmless to repeat begins while the commit that led to it is under way
    draw: Callable[[], float] = random.random
    breakers: Breakers = field(default_factory=Breakers)
    model_slots: Slots = field(init=False)
    tool_slots: Slots = field(init=False)
    last_slots: Slots = field(init=False)  # one, for steps that have one start left: should it kill us, it is the one

    def __post_init__(self) -> None:
        self.model_slots, self.tool_slots = Slots(self.max_model_calls), Slots(self.max_tool_calls)
        self.last_slots = Slots(1)
