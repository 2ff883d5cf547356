"""An agent: a model with instructions and tools, checked when it is made and frozen into each run that starts."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runfold.core.errors import ConfigError
from runfold.core.events import AgentDefinition
from runfold.model.caching import MOST, own_markers
from runfold.tools import Registry, Tool

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_OWN = frozenset({"model", "messages", "max_tokens", "system", "tools", "stream"})  # fields of the request that Runfold fills
_TTLS = ("5m", "1h", "off")
_GONE = frozenset({"temperature", "top_p", "top_k"})  # the API refuses them since 2026-10-21


class Agent:
    """A model with instructions and tools. Immutable; everything is checked here, raising `ConfigError`.

    name        what runs ask for
    model       a model id
    system      instructions: text, or system blocks of the Messages API
    tools       functions marked by `@tool`
    max_tokens  of one answer
    cache_ttl   how long the API keeps tools and system blocks cached: "5m"; "1h", for runs that wait long between two calls;
                "off": nothing is marked
    options     further fields of each request: thinking, output_config, tool_choice, service_tier …
    """

    def __init__(
        self,
        name: str,
        model: str,
        system: str | Sequence[Mapping[str, Any]] = "",
        tools: Iterable[Tool[..., Any]] = (),
        *,
        max_tokens: int = 4096,
        cache_ttl: str = "5m",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        _expect(isinstance(name, str) and NAME.fullmatch(name), f"agent name must be 1 to 64 of a-z A-Z 0-9 _ . -, got {name!r}")
        _expect(isinstance(model, str) and model.strip(), f"agent {name}: model must be a model id, got {model!r}")
        _expect(type(max_tokens) is int and max_tokens > 0, f"agent {name}: max_tokens must be an int >= 1, got {max_tokens!r}")
        _expect(cache_ttl in _TTLS, f"agent {name}: cache_ttl must be one of {', '.join(_TTLS)}, got {cache_ttl!r}")
        self.name, self.registry, self._cache_ttl = name, Registry(tools), cache_ttl
        self._system, self._options = _system(name, system), _options(name, options or {})
        own = own_markers({**self._options, "system": self._system, "tools": self.registry.definitions()})
        _expect(len(own) <= MOST, f"agent {name}: at most {MOST} cache_control markers may be given, got {len(own)}")
        self._definition = self._define(model, max_tokens)

    def definition(self, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition:
        """What a new run of this agent starts with, with what its request overrides. Equal agents have equal hashes."""
        own = self._definition
        if model is None and max_tokens is None:
            return own
        return self._define(model or own.model, max_tokens or own.max_tokens)

    def _define(self, model: str, max_tokens: int) -> AgentDefinition:
        return _define(self.name, model, max_tokens, self._system, self.registry.definitions(), self._options, self._cache_ttl)

    def __repr__(self) -> str:
        return f"<agent {self.name}: {self._definition.model}, tools: {', '.join(self.registry.names) or 'none'}>"


def _define(
    name: str, model: str, max_tokens: int, system: list[Any], tools: list[Any], options: dict[str, Any], cache_ttl: str
) -> AgentDefinition:
    parts = {"name": name, "model": model, "max_tokens": max_tokens, "system": system, "tools": tools, "options": options}
    canonical = _json(name, parts | {"cache_ttl": cache_ttl}, sort_keys=True)
    return AgentDefinition(
        name=name,
        model=model,
        max_tokens=max_tokens,
        system_json=_json(name, system),
        tools_json=_json(name, tools),
        options_json=_json(name, options),
        cache_ttl=cache_ttl,
        hash=hashlib.sha256(canonical.encode()).hexdigest(),
    )


def _json(name: str, value: Any, *, sort_keys: bool = False) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"agent {name}: system, tools and options must be JSON: {error}") from error
    return text


def _system(name: str, system: str | Sequence[Mapping[str, Any]]) -> list[Any]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}] if system.strip() else []
    blocks = list(system)
    valid = all(isinstance(block, Mapping) and "type" in block for block in blocks)
    _expect(valid, f"agent {name}: system must be text or a list of system blocks, got {system!r}")
    return [dict(block) for block in blocks]


def _options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    _expect(isinstance(options, Mapping), f"agent {name}: options must be a dict of request fields, got {options!r}")
    for field in options:
        _expect(field not in _OWN, f"agent {name}: options must not hold {field!r}: Runfold sets it")
        _expect(field not in _GONE, f"agent {name}: options must not hold {field!r}: the API no longer accepts it")
    return dict(options)


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise ConfigError(message)
