"""A run id in a request."""

from pydantic_core import PydanticCustomError

from runfold.core.run_ids import PATTERN, is_run_id

__all__ = ["PATTERN", "canonical", "is_run_id"]


def canonical(text: str) -> str:
    """``text``, for pydantic to refuse where it is no run id."""
    if not is_run_id(text):
        raise PydanticCustomError("run_id", "Input should be a UUID in canonical spelling: lower case, 8-4-4-4-12 hex digits")
    return text
