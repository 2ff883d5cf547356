"""The list of runs: its filters, and the cursor that says where a page ended."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runfold.api.grammar import NAME_LENGTH, Name
from runfold.api.problems import SHOWN, Problem, shown
from runfold.api.rows import Row
from runfold.api.run_ids import PATTERN
from runfold.core.events import Status

LARGEST_PAGE = 200

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CURSOR = re.compile(f"(-?[0-9]{{1,17}}) ({PATTERN})").fullmatch


def cursor_after(row: Row) -> str:
    """The cursor of the page that follows ``row``."""
    microseconds = (row["requested_at"] - _EPOCH) // _MICROSECOND
    return urlsafe_b64encode(f"{microseconds} {row['id']}".encode()).decode()


def position(cursor: str) -> tuple[datetime, str]:
    """(requested_at, id) of the row that a page ended with. Raises `ValueError` when this is no cursor of ours."""
    match = _CURSOR(urlsafe_b64decode(cursor).decode("ascii"))
    if match is None:
        raise ValueError("not a cursor")
    return _EPOCH + timedelta(microseconds=int(match[1])), match[2]


def _cursor(cursor: str) -> str:
    try:
        position(cursor)
    except (ValueError, OverflowError, binascii.Error):
        raise PydanticCustomError("cursor", "Input should be a nextCursor of an earlier page") from None
    return cursor


class Filters(BaseModel):
    """Which runs to list. Values match exactly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status | None = Field(None, description="Only runs with this status.")
    agent: Name | None = Field(None, description="Only runs of this agent.")
    tenant: Name | None = Field(None, description="Only runs of this tenant.")
    limit: int = Field(50, ge=1, le=LARGEST_PAGE, description="Most runs on the page.")
    cursor: Annotated[str, Field(max_length=NAME_LENGTH), AfterValidator(_cursor)] | None = Field(
        None, description="`nextCursor` of the page before; opaque."
    )


def check_repeated(names: Iterable[str]) -> None:
    """Raise `Problem` (422) when a query parameter is given twice: which one was meant?"""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Problem(422, "invalid_request", f"the parameter {shown(name)} is given twice", field=name[:SHOWN])
        seen.add(name)
