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
