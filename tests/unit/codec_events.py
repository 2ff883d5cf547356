"""Any event of any type, for hypothesis, derived from the dataclasses: a new record type is covered the day it is written."""

from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from runfold.core.events import Event, RunSnapshotted
from runfold.core.snapshot import VERSION

_INT64 = st.integers(-(2**63), 2**63 - 1)
_MONEY = st.integers(-(10**24) + 1, 10**24 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-12))


def any_event() -> st.SearchStrategy[Any]:
    return st.one_of([any_of(cls) for cls in get_args(Event)])


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint as they occur in events."""
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        values = {field.name: any_of(hints[field.name]) for field in fields(hint)}
        if hint is RunSnapshotted:
            values["state_version"] = st.integers(-(2**63), VERSION)  # a newer one is refused
        return st.builds(hint, **values)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(), st.text(), max_size=3)
    plain = {str: st.text(), int: _INT64, bool: st.booleans(), Decimal: _MONEY, NoneType: st.none()}
    return plain[hint] if hint in plain else st.one_of([any_of(part) for part in get_args(hint)])
