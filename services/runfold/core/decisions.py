"""What a run can be told to do next: the imperative mood, against the past tense of `runfold.core.events`."""

from dataclasses import dataclass
from decimal import Decimal

from runfold.core.events import Reason, Rejection, RunResumeRequested, Status
from runfold.core.run import Call


@dataclass(frozen=True, slots=True)
class Begin:
    """Freeze the agent's definition: RunStarted."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Start the model step: ModelStepStarted, then the call."""

    seq: int
    attempt: int
    max_tokens: int
    max_cost: Decimal | None = None  # USD, as `runfold.core.reserving` has it; None: no known price


@dataclass(frozen=True, slots=True)
class RunTools:
    """Start these calls of the turn, as far as their tools and the worker's limits allow; ``attempt`` is one more than theirs."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Suspend:
    reason: Reason
    detail: str
    tool_use_id: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the suspended run go on, as ``command`` asks."""

    command: RunResumeRequested


@dataclass(frozen=True, slots=True)
class Reject:
    """Say that a command had no effect."""

    command_id: str
    reason: Rejection


@dataclass(frozen=True, slots=True)
class Finish:
    status: Status
    reason: Reason
    detail: str = ""
    command_id: str | None = None


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do now; look again at ``at`` (broker ms) at the latest."""

    at: int


Decision = Begin | CallModel | RunTools | Suspend | Resume | Reject | Finish | WaitUntil
