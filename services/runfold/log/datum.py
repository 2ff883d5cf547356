"""Dataclasses as the plain values that Avro writes, and back. Everything is worked out once per class, nothing per record.

An enum is its symbol, money is the decimal's unscaled integer as bytes, a nested dataclass is a dict; the rest stands for itself.
"""

from collections.abc import Callable
from dataclasses import fields
from decimal import Context, Decimal
from enum import Enum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

Datum = dict[str, Any]
Convert = Callable[[Any], Any]

SCALE = 12  # fractional digits of money
PRECISION = 24  # digits of money in all
_UNIT: int = 10**SCALE
_LIMIT: int = 10**PRECISION
_EXACT = Context(prec=PRECISION)  # a tool may have changed the thread's own


def unfold(cls: type) -> Callable[[Any], Datum]:
    """A function that turns an object of the dataclass ``cls`` into a datum."""
    names = [field.name for field in fields(cls)]
    values = attrgetter(*names, "__class__")  # the last is dropped: it makes a tuple also of one field
    converted = _conversions(cls, _outward)

    def to_datum(event: Any) -> Datum:
        datum = dict(zip(names, values(event), strict=False))
        for name, convert in converted:
            if datum[name] is not None:
                datum[name] = convert(datum[name])
        return datum

    return to_datum


def fold(cls: type) -> Callable[[Datum], Any]:
    """A function that turns a datum into an object of the dataclass ``cls``. The datum is used up."""
    converted = _conversions(cls, _inward)

    def from_datum(datum: Datum) -> Any:
        for name, convert in converted:
            if datum[name] is not None:
                datum[name] = convert(datum[name])
        return cls(**datum)

    return from_datum


def _conversions(cls: type, conversion: Callable[[Any], Convert | None]) -> list[tuple[str, Convert]]:
    hints = get_type_hints(cls)
    found = ((field.name, conversion(_present(hints[field.name]))) for field in fields(cls))
    return [(name, convert) for name, convert in found if convert]


def _present(hint: Any) -> Any:
    """``T`` of ``T | None``."""
    if isinstance(hint, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    return hint


def _outward(hint: Any) -> Convert | None:
    if hint is Decimal:
        return money_bytes
    return unfold(hint) if hasattr(hint, "__dataclass_fields__") else None


def _inward(hint: Any) -> Convert | None:
    if hint is Decimal:
        return money
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {member.value: member for member in hint}.__getitem__
    return fold(hint) if hasattr(hint, "__dataclass_fields__") else None


def money_bytes(amount: Decimal) -> bytes:
    """US dollars as Avro's decimal(24, 12): a big-endian two's complement. Raises `ValueError` when digits would be lost."""
    numerator, denominator = amount.as_integer_ratio()
    unscaled, rest = divmod(numerator * _UNIT, denominator)
    if rest or abs(unscaled) >= _LIMIT:
        raise ValueError(f"money has at most {PRECISION - SCALE} digits before and {SCALE} after the point, got {amount}")
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def money(raw: bytes) -> Decimal:
    """The inverse of `money_bytes`. Raises `ValueError` for more digits than money has."""
    unscaled = int.from_bytes(raw, "big", signed=True)
    if abs(unscaled) >= _LIMIT:
        raise ValueError(f"money has at most {PRECISION} digits, got {len(raw)} bytes")
    return Decimal(unscaled).scaleb(-SCALE, _EXACT)
