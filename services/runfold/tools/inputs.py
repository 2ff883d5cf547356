"""The input of a tool call: from the model's JSON text to keyword arguments, or to a message that names the wrong field.

Strict: unknown keys and wrong types are refused, nothing is coerced. What JSON has no type for (dates, decimals, enums, sets) is
read from the form its schema gives. Nothing here runs the tool.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from runfold.tools.signature import Signature

MAX_DEPTH = 64  # levels of nesting; parsers further down give up at depths of their own
_MAX_FAULTS = 8
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNKNOWN = {"unexpected_keyword_argument", "extra_forbidden"}
_MISSING = {"missing_keyword_only_argument", "missing_argument", "missing"}

Path = tuple[str | int, ...]


class InvalidInput(Exception):
    """The message is for the model: it names the field, what was expected and what came."""


def read(text: str, signature: Signature) -> dict[str, Any]:
    """The keyword arguments that ``text``, a JSON object, holds. Raises `InvalidInput`."""
    try:
        _check(_parse(text))
        return signature.adapter.validate_json(text, strict=True, extra="forbid" if signature.closed else None)
    except InvalidInput as error:
        problem = str(error)
    except ValidationError as error:
        problem = _explain(error)
    except Exception as error:  # from a validator among the tool's own types
        problem = f"it cannot be checked: {type(error).__name__}: {error}"
    raise InvalidInput(f"{problem}. The fields are: {_fields(signature)}")


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidInput(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidInput(f"it is not JSON: {error}; expected an object") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"it must be a JSON object, got {_shown(value)}")
    return value


def _check(value: dict[str, Any]) -> None:
    """Refuse what is legal for a parser but good for nothing, wherever the signature would let it pass (``dict[str, Any]``)."""
    flaw = _flaw(value, 1)
    if flaw is not None:
        path, problem = flaw
        raise InvalidInput(f"{_named(path)}: {problem}")


def _flaw(value: Any, depth: int) -> tuple[Path, str] | None:
    if depth > MAX_DEPTH:
        return (), f"nested deeper than {MAX_DEPTH} levels"
    children: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        if (problem := _problem(key, child)) is not None:
            return (key,), problem
        if isinstance(child, dict | list) and (deeper := _flaw(child, depth + 1)) is not None:
            return (key, *deeper[0]), deeper[1]
    return None


def _problem(key: str | int, child: Any) -> str | None:
    if key == "__proto__":  # would rewrite objects in the JavaScript that shows timelines
        return "this key is not allowed"
    if isinstance(child, float) and not math.isfinite(child):
        return "expected a finite number"
    if isinstance(child, str) and not child.isascii() and _SURROGATE.search(child):
        return "expected Unicode text, got a lone surrogate"
    return None


def _explain(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False)
    told = [_fault(fault["type"], fault["loc"], fault["msg"], fault["input"]) for fault in faults[:_MAX_FAULTS]]
    if len(faults) > _MAX_FAULTS:
        told.append(f"and {len(faults) - _MAX_FAULTS} more")
    return "; ".join(told)


def _fault(kind: str, path: Path, message: str, given: Any) -> str:
    if kind in _UNKNOWN:
        return f"{_named(path)}: there is no such field"
    if kind in _MISSING:
        return f"{_named(path)}: required, but missing"
    return f"{_named(path)}: {message}, got {_shown(given)}"


def _fields(signature: Signature) -> str:
    required = signature.schema.get("required", [])
    names = [f"{name} (required)" if name in required else name for name in signature.schema["properties"]]
    return ", ".join(names) or "none"


def _named(path: Path) -> str:
    """``a.b[0]``, cut."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return f"field '{text if len(text) <= 80 else text[:80] + '…'}'"


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 60 else text[:60] + "…"
