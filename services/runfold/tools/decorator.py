"""`@tool`: a typed function becomes something a model can call and the engine can account for."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from runfold.core.errors import ConfigError
from runfold.core.events import SideEffect
from runfold.ports import ToolPolicy
from runfold.tools import inputs
from runfold.tools.docstring import describe
from runfold.tools.signature import signature_of

DEFAULT_TIMEOUT = 60.0  # seconds
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")  # what the Messages API accepts

P = ParamSpec("P")
R = TypeVar("R")
Effect = Literal["none", "read", "write", "external"]
Idempotency = Literal["none", "optional", "required"]


class Tool(Generic[P, R]):
    """A function with what the model and the engine must know of it. Called, it is still that function, for tests and reuse.

    ``input_schema`` is a JSON schema, ``timeout`` is in seconds, ``context`` names the parameter that gets the `ToolContext`.
    """

    def __init__(self, function: Callable[P, R], name: str, policy: ToolPolicy, timeout: float) -> None:
        self.function, self.name, self.policy, self.timeout = function, name, policy, timeout
        self.is_async = inspect.iscoroutinefunction(function)
        self.description, about = describe(function.__doc__)
        self._signature = signature_of(function, about)
        self.input_schema, self.context = self._signature.schema, self._signature.context
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def arguments(self, input_json: str) -> dict[str, Any]:
        """The function's keyword arguments, without its context. Raises `inputs.InvalidInput`."""
        return inputs.read(input_json, self._signature)

    def definition(self) -> dict[str, Any]:
        """The tool as the Messages API takes it."""
        described = {"description": self.description} if self.description else {}
        return {"name": self.name, **described, "input_schema": self.input_schema}


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    side_effect: Effect = "write",
    idempotency: Idempotency = "none",
    repeatable: bool | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    parallel: bool = True,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    side_effect: Effect = "write",
    idempotency: Idempotency = "none",
    repeatable: bool | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    parallel: bool = True,
) -> Any:
    """Make a tool of a typed function, sync or async. Raises `ConfigError` for what no schema can be made of.

    name         what the model calls it; default: the function's name
    side_effect  what it does outside the run: "none", "read", "write" (own data) or "external" (mail, money, systems of others).
                 A tool that does not say is taken to write
    idempotency  whether the same call may happen twice. "none": twice is twice. "optional": twice is once anyway, as with an
                 upsert. "required": twice is once because the tool uses ``ToolContext.idempotency_key``, so it must take one
    repeatable   whether a call whose outcome is unknown is made again, under the same key; else it waits for a person.
                 Default: yes for side effects "none" and "read", and for the others unless idempotency is "none"
    timeout      seconds until the model is told that it timed out
    parallel     whether it may run beside other calls of its turn
    """

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        title = name if name is not None else getattr(function, "__name__", "")
        _check(function, title, idempotency, timeout)
        effect = _side_effect(title, side_effect)
        again = repeats(effect, idempotency) if repeatable is None else repeatable
        made = Tool(function, title, ToolPolicy(effect, again, parallel), float(timeout))
        if idempotency == "required" and made.context is None:
            raise ConfigError(f"tool {title}: idempotency='required', but no parameter is a ToolContext, which holds the key")
        return made

    return decorate if function is None else decorate(function)


def repeats(effect: SideEffect, idempotency: Idempotency) -> bool:
    """Whether doing it again does no harm: there is no effect, or the second time has none."""
    return effect in (SideEffect.NONE, SideEffect.READ) or idempotency != "none"


def _check(function: Any, name: str, idempotency: str, timeout: float) -> None:
    if not inspect.isroutine(function):
        raise ConfigError(f"@tool expects a function, got {type(function).__name__}")
    if not NAME.fullmatch(name):
        raise ConfigError(f"tool name {name!r}: expected 1 to 128 of a-z A-Z 0-9 _ -; give one by @tool(name=…)")
    if idempotency not in ("none", "optional", "required"):
        raise ConfigError(f"tool {name}: idempotency must be 'none', 'optional' or 'required', got {idempotency!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not (timeout > 0 and math.isfinite(timeout)):
        raise ConfigError(f"tool {name}: timeout must be a finite number of seconds above 0, got {timeout!r}")


def _side_effect(name: str, given: str) -> SideEffect:
    try:
        return SideEffect(given.upper())
    except (ValueError, AttributeError):
        raise ConfigError(f"tool {name}: side_effect must be 'none', 'read', 'write' or 'external', got {given!r}") from None
