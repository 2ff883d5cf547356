"""What a tool may be given, raise and return beside plain values."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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


_CALL: ContextVar[ToolContext | None] = ContextVar("runfold_tool_call", default=None)


@contextmanager
def in_call(context: ToolContext) -> Iterator[None]:
    """What runs inside, in tasks and threads of its own too, belongs to this call."""
    token = _CALL.set(context)
    try:
        yield
    finally:
        _CALL.reset(token)


def call_fields() -> dict[str, Any]:
    """The fields of a log record that say in which call of a tool this code runs; none outside of one."""
    call = _CALL.get()
    return {} if call is None else {"runfold.run.id": call.run_id, "runfold.step.seq": call.seq}


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong: its message, and nothing else, becomes the is_error result."""


@dataclass(frozen=True, slots=True)
class Content:
    """A result that is content blocks of the Messages API, ``{"type": "text", "text": …}`` and the like, passed on as it is."""

    blocks: Sequence[Mapping[str, Any]]
