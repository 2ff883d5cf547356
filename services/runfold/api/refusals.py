"""Refusals that requests about a run have in common."""

from runfold.api.problems import Problem
from runfold.api.rows import Row
from runfold.core.events import Reason


def refuse_lost(row: Row) -> None:
    """409 for a run whose owner could not even read the command."""
    if row["reason"] == Reason.HISTORY_LOST:
        raise Problem(409, "history_lost", f"nobody can carry this run: {row['detail']}", id=row["id"], status=row["status"])


def unknown(run_id: str) -> Problem:
    """404."""
    return Problem(404, "run_not_found", f"there is no run {run_id}: neither in the projection nor in the log behind it")
