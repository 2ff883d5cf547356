"""`runfold quarantine` and `runfold resume`, against the real API over a socket; only who projects is the test."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from typer.testing import CliRunner

from runfold.api import server
from runfold.api.app import create_app
from runfold.cli.app import app
from runfold.core.errors import RunfoldError
from runfold.core.events import Reason, RunCancelRequested, RunRequested, RunResumeRequested, Status
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryTail
from tests.unit.api_client import Projection, records_of

ID = "3b241101-e2bb-4255-8caf-4136c566a962"
OTHER = "3b241101-e2bb-4255-8caf-4136c566a963"


class Desk:
    """An API with one run in its tables, and an operator."""

    def __init__(self, broker: MemoryBroker, projection: Projection, url: str) -> None:
        self.broker, self.projection, self.url = broker, projection, url

    async def stands(self, status: Status, reason: Reason | None = None, **fields: Any) -> None:
        await MemoryCommands(self.broker).send(RunRequested(run_id=ID, agent="default", input="go"))
        await self.projection.catch_up()
        self.projection.rows[ID] |= {"status": status, "reason": reason, **fields}

    async def run(self, *words: str) -> Any:
        """What `typer.testing` says of it."""
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, [*words, "--api", self.url]))

    @property
    def sent(self) -> list[Any]:
        return [record.event for record in records_of(self.broker) if not isinstance(record.event, RunRequested)]


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    broker = MemoryBroker()
    projection, bound, stop = Projection(broker), asyncio.get_running_loop().create_future(), asyncio.Event()
    api = create_app(MemoryCommands(broker), projection, MemoryTail(broker))
    serving = asyncio.create_task(server.serve(api, "127.0.0.1", 0, on_bound=bound.set_result, stop=stop))
    try:
        yield Desk(broker, projection, f"http://127.0.0.1:{await bound}")
    finally:
        stop.set()
        await serving


async def test_the_list_says_why_and_since_when_each_run_waits() -> None:
    async with desk() as here:
        detail = "tool 'charge' \x1b[31mwas [bold]started"
        await here.stands(Status.SUSPENDED, Reason.OUTCOME_UNKNOWN, detail=detail, waiting_tool_use_id="toolu_1")
        await MemoryCommands(here.broker).send(RunRequested(run_id=OTHER, agent="default", input="go"))
        await here.projection.catch_up()
        (told,) = json.loads((await here.run("quarantine", "list", "--json")).stdout)
        assert {**told, "lastProgressAt": None} == {
            "id": ID,
            "agent": "default",
            "reason": "OUTCOME_UNKNOWN",
            "detail": detail,
            "waitingToolUseId": "toolu_1",
            "lastProgressAt": None,
        }
        assert told["lastProgressAt"]
        shown = (await here.run("quarantine", "list")).stdout
        assert "toolu_1" in shown
        assert "[bold]started" in shown, "what a run says is no markup"
        assert "\x1b" not in shown, "and no command to the terminal"


async def test_a_long_list_is_whole() -> None:
    async with desk() as here:
        for n in range(230):
            id_ = f"3b241101-e2bb-4255-8caf-{n:012x}"
            await MemoryCommands(here.broker).send(RunRequested(run_id=id_, agent="default", input="go"))
        await here.projection.catch_up()
        for row in here.projection.rows.values():
            row["status"] = Status.SUSPENDED
        assert len({run["id"] for run in json.loads((await here.run("quarantine", "list", "--json")).stdout)}) == 230


async def test_resume_sends_the_limits_that_were_given_and_no_others() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET)
        result = await here.run("resume", ID, "--token-budget", "9000", "--cost-ceiling-usd", "0.5", "--detail", "go on")
        assert (result.exit_code, result.stdout) == (0, f"{ID} SUSPENDED, resume requested\n")
        assert (await here.run("quarantine", "resume", ID)).exit_code == 0
        first, second = here.sent
        assert isinstance(first, RunResumeRequested)
        assert (first.token_budget, str(first.cost_ceiling), first.max_steps) == (9000, "0.500000000000", None)
        assert (first.detail, second.token_budget, second.detail) == ("go on", None, "")


async def test_fail_ends_the_run_with_the_operators_words() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.OUTCOME_UNKNOWN)
        assert (await here.run("quarantine", "fail", ID, "--detail", "charged twice, refunded")).exit_code == 0
        (command,) = here.sent
        assert isinstance(command, RunCancelRequested)
        assert command.detail == "charged twice, refunded"


async def test_skip_is_for_records_that_cannot_be_read_alone() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.OUTCOME_UNKNOWN)
        refused = (await here.run("quarantine", "skip", ID)).exception
        assert isinstance(refused, RunfoldError)
        assert "suspended for UNREADABLE_RECORD" in str(refused)
        assert not here.sent
        await here.stands(Status.SUSPENDED, Reason.UNREADABLE_RECORD)
        assert (await here.run("quarantine", "skip", ID)).exit_code == 0
        assert isinstance(here.sent[0], RunResumeRequested)


async def test_a_run_that_goes_on_is_no_matter_of_quarantine() -> None:
    async with desk() as here:
        await here.stands(Status.RUNNING)
        for words in (["quarantine", "fail", ID], ["quarantine", "resume", ID], ["resume", ID], ["quarantine", "skip", ID]):
            assert isinstance((await here.run(*words)).exception, RunfoldError)
        assert not here.sent


async def test_cancel_of_a_cancelled_run_asks_for_nothing() -> None:
    async with desk() as here:
        await here.stands(Status.CANCELLED, Reason.CANCEL)
        result = await here.run("cancel", ID)
        assert (result.exit_code, result.stdout) == (0, f"{ID} already CANCELLED\n")
        assert here.sent == []
