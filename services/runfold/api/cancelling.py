"""Cancelling a run: a command to its owner, who decides.

The API sees the run as the projection has it. A run that ends at that very moment may have been answered 202: the owner then
rejects the command and nothing changes.
"""

import uuid

from pydantic import Field

from runfold.api.closed import Closed
from runfold.api.grammar import Detail
from runfold.api.patience import taken
from runfold.api.problems import Problem
from runfold.api.reads import Reads
from runfold.api.refusals import refuse_lost, unknown
from runfold.core.events import RunCancelRequested, Status
from runfold.ports import Commands

REQUESTED_BY = "api"


class Cancellation(Closed):
    """What may be said beside a cancel."""

    detail: Detail = Field("", description="Why, for people: it becomes the run's `detail`.")


async def cancel(run_id: str, said: Cancellation, commands: Commands, reads: Reads) -> tuple[Status, bool]:
    """(the run's status as far as it is known, whether a command was sent). Raises `Problem`: 404 for an unknown run, 409 for one
    that ended in another way."""
    row = await reads.run(run_id)
    if row is None:
        raise unknown(run_id)
    status = Status(row["status"])
    if status is Status.CANCELLED:
        return status, False
    if status.final:
        raise Problem(409, "run_finished", f"the run has ended: it is {status}", id=run_id, status=status)
    refuse_lost(row)
    command = RunCancelRequested(
        run_id=run_id, command_id=str(uuid.uuid4()), requested_by=REQUESTED_BY, detail=said.detail
    )
    await taken(commands.send(command))
    return status, True
