"""How a run id is spelled. Only one spelling exists: another would have another Kafka key, and another partition."""

import re

from pydantic_core import PydanticCustomError

from runfold.log.wire import RUN_ID_PATTERN as PATTERN

__all__ = ["PATTERN", "canonical", "is_run_id"]

_RUN_ID = re.compile(PATTERN).fullmatch


def is_run_id(text: str) -> bool:
    """Whether ``text`` is a UUID in canonical lower-case spelling."""
    return _RUN_ID(text) is not None


def canonical(text: str) -> str:
    """``text``, for pydantic to refuse where it is no run id."""
    if not is_run_id(text):
        raise PydanticCustomError("run_id", "Input should be a UUID in canonical spelling: lower case, 8-4-4-4-12 hex digits")
    return text
