"""Exact arithmetic of money, whatever a tool has done to the decimal context of its thread."""

from decimal import Context, Decimal

EXACT = Context(prec=100, traps=[])  # no amount that the log holds has more than 24 digits


def add(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The exact sum of two amounts; not known where one of them is not."""
    return None if one is None or other is None else EXACT.add(one, other)
