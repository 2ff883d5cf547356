"""Values of the log as PostgreSQL can hold them. Pure.

PostgreSQL takes less than the log does, and the projector must never stand still before one record. So:

- U+0000, which no text column holds, becomes U+FFFD (`stored`);
- agent and tenant, which are indexed, and what may be anything are cut to 500 characters (`named`);
- numbers are kept within 64 bits (`counted`), times within the years 1 to 9999 (`moment`).
"""

from datetime import UTC, datetime, timedelta
from typing import TypedDict

from runfold.core.events import Usage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_NAME_CHARACTERS = 500  # an index entry must stay below 2,700 bytes
_LARGEST = 2**63 - 1


def stored(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def optional(text: str | None) -> str | None:
    return None if text is None else stored(text)


def named(text: str) -> str:
    return stored(text[:_NAME_CHARACTERS])


def counted(number: int) -> int:
    return min(number, _LARGEST)


def moment(ms: int) -> datetime:
    """Broker milliseconds as a time."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))


class Tokens(TypedDict):
    """Tokens by kind, under the names of their columns."""

    input_tokens: int
    output_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    cache_read_tokens: int


def tokens(usage: Usage) -> Tokens:
    return Tokens(
        input_tokens=counted(usage.input_tokens),
        output_tokens=counted(usage.output_tokens),
        cache_write_5m_tokens=counted(usage.cache_write_5m_tokens),
        cache_write_1h_tokens=counted(usage.cache_write_1h_tokens),
        cache_read_tokens=counted(usage.cache_read_tokens),
    )
