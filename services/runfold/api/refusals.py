"""Refusals that requests about a run have in common."""

from runfold.api.problems import Problem
from runfold.api.rows import Row
from runfold.core.events import Reason


def refuse_lost(row: Row) -> None:
    """409 for a run whose owner could not even read the command."""
    if row["reason"] == Reason.HISTORY_LOST:
        raise Problem(409, "history_lost", f"nobody can carry this run: {row['detail']}", id=row["id"], status=row["status"])


def refuse_unread(row: Row) -> None:
    """409 for a run that waits for a newer version: no person can resume it, the deploy does."""
    if row["reason"] == Reason.NEEDS_NEWER_VERSION:
        message = f"a worker of a newer version goes on with this run by itself: finish the deploy. {row['detail']}"
        raise Problem(409, "needs_newer_version", message, id=row["id"], status=row["status"])


def unknown(run_id: str) -> Problem:
    """404."""
    return Problem(404, "run_not_found", f"there is no run {run_id}: neither in the projection nor in the log behind it")
