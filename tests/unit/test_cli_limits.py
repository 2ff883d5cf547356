"""The limits of a run on the command line: given at its submission, raised when it is resumed."""

from decimal import Decimal

import pytest

from runfold.core.events import OnBudget, Reason, RunRequested, RunResumeRequested, Status
from tests.unit.api_client import records_of
from tests.unit.test_quarantine import ID, desk


async def test_submit_says_what_happens_at_a_limit() -> None:
    async with desk() as here:
        told = await here.run("submit", "go", "--token-budget", "5000", "--cost-ceiling-usd", "0.25", "--on-budget", "fail")
        assert told.exit_code == 0, told.output
        await here.run("submit", "go")
        first, second = (record.event.limits for record in records_of(here.broker) if isinstance(record.event, RunRequested))
        limits = {first.on_budget: first, second.on_budget: second}
        assert (limits[OnBudget.FAIL].token_budget, limits[OnBudget.FAIL].cost_ceiling) == (5000, Decimal("0.25"))
        assert limits[OnBudget.SUSPEND].token_budget is None


async def test_resume_raises_limits_and_leaves_the_others() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET)
        told = await here.run("resume", ID, "--cost-ceiling-usd", "0.5")
        assert told.exit_code == 0, told.output
        [command] = here.sent
        assert isinstance(command, RunResumeRequested)
        assert (command.token_budget, command.cost_ceiling, command.max_steps) == (None, Decimal("0.5"), None)


@pytest.mark.parametrize("amount", ["much", "nan", "sNaN", "inf", "1e400"])
async def test_an_amount_that_is_none_is_refused_before_anything_is_sent(amount: str) -> None:
    async with desk() as here:
        told = await here.run("submit", "go", "--cost-ceiling-usd", amount)
        assert told.exit_code == 2
        assert "expected US dollars" in told.output


async def test_submit_can_say_all_that_the_api_takes() -> None:
    async with desk() as here:
        words = ["--model", "m-1", "--max-tokens", "99", "--progress-timeout-seconds", "7", "--tenant", "acme"]
        told = await here.run("submit", "go", *words, "--metadata", "a=1", "--metadata", "b=x=y")
        assert told.exit_code == 0, told.output
        [asked] = [record.event for record in records_of(here.broker) if isinstance(record.event, RunRequested)]
        assert (asked.model, asked.max_tokens, asked.limits.progress_timeout_ms, asked.tenant) == ("m-1", 99, 7000, "acme")
        assert asked.metadata == {"a": "1", "b": "x=y"}


async def test_a_label_without_a_value_is_refused() -> None:
    async with desk() as here:
        told = await here.run("submit", "go", "--metadata", "a")
        assert told.exit_code == 2
        assert "KEY=VALUE" in told.output
        assert not records_of(here.broker)


async def test_watch_of_a_suspended_run_ends_with_what_resumes_it() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET)
        told = await here.run("watch", ID)
        assert told.exit_code == 1
        assert told.stdout.endswith(f"to go on: runfold resume {ID} --token-budget N or --cost-ceiling-usd USD\n")
        await here.stands(Status.SUSPENDED, Reason.HISTORY_LOST)
        assert "runfold resume" not in (await here.run("watch", ID)).stdout


async def test_a_status_may_be_written_small() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET)
        assert ID in (await here.run("runs", "--status", "suspended")).stdout
        assert ID not in (await here.run("runs", "--status", "running")).stdout
