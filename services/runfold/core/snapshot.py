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
    """What `to_text` was given. Raises ValueError, KeyError or TypeError for anything else."""
    state: State = _object(cls, json.loads(text))
    return state


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a state holds no {type(value).__name__}")


def _object(cls: Any, values: dict[str, Any]) -> Any:
    if unknown := values.keys() - {field.name for field in fields(cls)}:
        raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    hints = _hints(cls)
    return cls(**{name: _value(hints[name], value) for name, value in values.items()})


_hints = cache(get_type_hints)


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is tuple:
        return tuple(_value(get_args(hint)[0], each) for each in value)
    if is_dataclass(hint):
        return _object(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum | Decimal):
        return hint(value)
    return value
