"""What an audit finds: a promise that a record breaks, and where the record stands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any, Any], str | None]
"""An invariant. Its name is the invariant's, its docstring says what holds, and what it returns is how a record breaks it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One record that breaks one invariant. ``run_id`` is None where the record tells of no run."""

    invariant: str
    partition: int
    offset: int
    run_id: str | None
    detail: str

    def __str__(self) -> str:
        run = "" if self.run_id is None else f", run {self.run_id}"
        return f"{self.invariant} at {self.partition}/{self.offset}{run}: {self.detail}"


def name_of(check: Check) -> str:
    return check.__name__


def sentence_of(check: Check) -> str:
    """What holds, in one sentence."""
    return " ".join((check.__doc__ or "").split())
