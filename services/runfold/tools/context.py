"""What a tool may be given, raise and return beside plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Which call this is. A parameter annotated with it gets it; the model does not see that parameter."""

    run_id: str
    tool_use_id: str
    idempotency_key: str  # the same for every attempt of this call, and of no other call
    attempt: int  # from 1
    seq: int  # of the step in its run


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong: its message, and nothing else, becomes the is_error result."""


@dataclass(frozen=True, slots=True)
class Content:
    """A result that is content blocks of the Messages API, ``{"type": "text", "text": …}`` and the like, passed on as it is."""

    blocks: Sequence[Mapping[str, Any]]
