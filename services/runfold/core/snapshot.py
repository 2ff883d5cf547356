"""A run's state as text and back: what `RunSnapshotted` carries, so that an old open run does not hold recovery back.

The text is JSON with the names of the state's fields. It is the owners' own affair, no contract: `VERSION` says which builds can
read it, and the log does not hand an owner a snapshot of a newer version.
"""

import json
from dataclasses import asdict, fields, is_dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

State = TypeVar("State")

VERSION = 1


def to_text(state: Any) -> str:
    """A frozen dataclass of plain values, enums, decimals, tuples and its like. As large as the run's conversation."""
    return json.dumps(asdict(state), default=_plain, ensure_ascii=False, separators=(",", ":"))


def from_text(cls: type[State], text: str) -> State:
    """What `to_text` was given. Raises `ValueError` for anything else: whoever writes to the topic can forge a snapshot."""
    try:
        state: State = _object(cls, json.loads(text))
    except (ArithmeticError, RecursionError, TypeError) as error:
        raise ValueError(f"expected the text of a {cls.__name__} as to_text writes it: {error}") from error
    return state


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a state holds no {type(value).__name__}")


def _object(cls: Any, values: Any) -> Any:
    if not isinstance(values, dict):
        raise TypeError(f"expected the fields of a {cls.__name__}, got {type(values).__name__}")
    if unknown := values.keys() - {field.name for field in fields(cls)}:
        raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    hints = _hints(cls)
    return cls(**{name: _value(hints[name], value) for name, value in values.items()})


_hints = cache(get_type_hints)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, UnionType):
        if value is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    kind = get_origin(hint) or hint
    if kind is tuple:
        return tuple(_value(get_args(hint)[0], each) for each in _checked(list, value))
    if is_dataclass(kind):
        return _object(kind, value)
    if issubclass(kind, StrEnum | Decimal):
        return kind(_checked(str, value))
    return _checked(kind, value)


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
