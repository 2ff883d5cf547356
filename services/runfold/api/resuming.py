"""Resuming a suspended run: a command to its owner, who decides.

The API sees the run as the projection has it. A run that stops waiting at that very moment may have been answered 202: the owner
then rejects the command and nothing changes.
"""

import uuid

from pydantic import Field

from runfold.api.cancelling import REQUESTED_BY
from runfold.api.closed import Closed
from runfold.api.grammar import Detail, Steps, Tokens, Usd
from runfold.api.patience import taken
from runfold.api.problems import Problem
from runfold.api.reads import Reads
from runfold.api.refusals import refuse_lost, unknown
from runfold.core.events import RunResumeRequested, Status
from runfold.ports import Commands


class Resumption(Closed):
    """On which limits the run goes on. One that is absent stays as it is."""

    token_budget: Tokens | None = Field(None, description="Most tokens the run may use, those it has used included.")
    cost_ceiling_usd: Usd | None = Field(None, description="Most the run may cost, in US dollars, what it has cost included.")
    max_steps: Steps | None = Field(None, description="Most model and tool steps together, those it has made included.")
    detail: Detail = Field("", description="Why, for people: it stands in the log.")

    def command(self, run_id: str) -> RunResumeRequested:
        """The command that asks for it."""
        return RunResumeRequested(
            run_id=run_id,
            command_id=str(uuid.uuid4()),
            requested_by=REQUESTED_BY,
            detail=self.detail,
            token_budget=self.token_budget,
            cost_ceiling=self.cost_ceiling_usd,
            max_steps=self.max_steps,
        )


async def resume(run_id: str, on: Resumption, commands: Commands, reads: Reads) -> Status:
    """The run's status as far as it is known. Raises `Problem`: 404 for an unknown run, 409 for one that is not suspended."""
    row = await reads.run(run_id)
    if row is None:
        raise unknown(run_id)
    status = Status(row["status"])
    if status is not Status.SUSPENDED:
        message = f"only a suspended run can be resumed: it is {status}"
        raise Problem(409, "run_not_suspended", message, id=run_id, status=status)
    refuse_lost(row)
    await taken(commands.send(on.command(run_id)))
    return status
