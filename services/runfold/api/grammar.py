"""The values that a request may hold, and their bounds. Messages read "Input should …", as pydantic's own do."""

from decimal import Context, Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from runfold.core.decide import LARGEST_ANSWER

MOST_TOKENS = 10**12
LONGEST_SECONDS = 366 * 24 * 3600
MOST_STEPS = 100_000
MOST_USD = 10**12  # exclusive
USD_DIGITS = 12  # after the point
NAME_LENGTH = 200
DETAIL_LENGTH = 500
METADATA_KEYS = 50
METADATA_KEY_LENGTH = 64
METADATA_VALUE_LENGTH = 512

EXACT = Context(prec=100, traps=[])  # no number that is read here has as many digits

_FINEST = Decimal(1).scaleb(-USD_DIGITS)


def _text(value: str) -> str:
    """Text that Kafka and PostgreSQL can hold."""
    if "\0" in value:
        raise PydanticCustomError("text", "Input should not contain U+0000")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("text", "Input should not contain half of a surrogate pair") from None
    return value


def _name(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise PydanticCustomError("name", "Input should be printable text without spaces around it")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "Input should be text that is not blank")
    return value


def _usd(value: object) -> Decimal:
    amount = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(amount, Decimal) and amount.is_finite() and 0 < amount < MOST_USD:
        exact = amount.quantize(_FINEST, context=EXACT)
        if exact == amount:
            return exact
    wanted = f"a number of US dollars above 0 and below {MOST_USD}, with at most {USD_DIGITS} decimals"
    raise PydanticCustomError("usd", f"Input should be {wanted}")


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > METADATA_KEYS:
        raise PydanticCustomError("metadata", f"Input should be an object of at most {METADATA_KEYS} texts")
    for key, text in value.items():
        _check_label(key, 1, METADATA_KEY_LENGTH)
        _check_label(text, 0, METADATA_VALUE_LENGTH)
    return value


def _check_label(value: object, shortest: int, longest: int) -> None:
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        wanted = f"keys of 1 to {METADATA_KEY_LENGTH} and texts of at most {METADATA_VALUE_LENGTH} characters"
        raise PydanticCustomError("label", f"Input should have {wanted}")
    _text(value)


Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH), AfterValidator(_name)]
Input = Annotated[str, Field(min_length=1), AfterValidator(_text), AfterValidator(_not_blank)]
Detail = Annotated[str, Field(max_length=DETAIL_LENGTH), AfterValidator(_text)]
Usd = Annotated[
    Decimal,
    BeforeValidator(_usd),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": MOST_USD}),
]
Metadata = Annotated[
    dict[str, str],
    BeforeValidator(_metadata),
    WithJsonSchema({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_LENGTH},
        "propertyNames": {"minLength": 1, "maxLength": METADATA_KEY_LENGTH},
        "maxProperties": METADATA_KEYS,
    }),
]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
AnswerTokens = Annotated[int, Field(ge=1, le=LARGEST_ANSWER)]
Seconds = Annotated[int, Field(ge=1, le=LONGEST_SECONDS)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
