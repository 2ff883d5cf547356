"""JSON as it was meant: UTF-8, no key twice, no number rounded.

Numbers that no field could accept (NaN, Infinity, hundreds of digits) are kept as `Decimal`, so that whoever validates can refuse
them by the name of their field.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

from runfold.api.problems import SHOWN, Problem, shown

LONGEST_NUMBER = 64  # characters; longer ones are read as Infinity

_INFINITE = Decimal("Infinity")


def parse(data: bytes) -> Any:
    """The value that ``data`` holds. Numbers with a fraction or an exponent are `Decimal`. Raises `Problem` (422)."""
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=Decimal,
        )
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _malformed(f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _malformed("the body is nested too deeply") from None


def _malformed(message: str) -> Problem:
    return Problem(422, "invalid_json", message)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise Problem(422, "invalid_request", f"the key {shown(key)} stands twice in one object", field=key[:SHOWN])
        members[key] = value
    return members


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= LONGEST_NUMBER else _INFINITE


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text) if len(text) <= LONGEST_NUMBER else _INFINITE
    except InvalidOperation:  # an exponent of 20 digits
        return _INFINITE
