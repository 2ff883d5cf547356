"""The limits of a run on the command line: given at its submission, raised when it is resumed."""

from decimal import Decimal

import pytest
from typer.testing import CliRunner

from runfold.cli.app import app
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", ""], "expected some text, got ''"),
        (["submit", " \n"], "expected some text, got ' \\n'"),
        (["submit", "go", "--agent", ""], "expected some text, got ''"),
        (["submit", "go", "--model", ""], "expected some text, got ''"),
        (["submit", "go", "--tenant", ""], "expected some text, got ''"),
        (["submit", "go", "--max-steps", "0"], "Invalid value for '--max-steps': Input should be greater than or equal to 1"),
        (
            ["submit", "go", "--token-budget", "0"],
            "Invalid value for '--token-budget': Input should be greater than or equal to 1",
        ),
        (["resume", ID, "--max-steps", "0"], "Invalid value for '--max-steps': Input should be greater than or equal to 1"),
        (
            ["runs", "--status", "foo"],
            "expected one of queued, running, suspended, succeeded, failed, cancelled, timed_out, got 'foo'",
        ),
        (["runs", "--agent", ""], "expected some text, got ''"),
    ],
)
def test_a_word_that_cannot_be_meant_is_refused_as_it_was_typed(words: list[str], said: str) -> None:
    """Before anything is asked of the API: there is none here."""
    told = CliRunner().invoke(app, words, env={"COLUMNS": "200", "RUNFOLD_API": "http://127.0.0.1:1"})
    assert told.exit_code == 2
    assert said in told.output


@pytest.mark.parametrize(
    ("cost", "shown"), [(0.0, "0.000000"), (0.00019, "0.000190"), (12.5, "12.500000"), (1e-9, "0.000001"), (None, "")]
)
async def test_dollars_have_one_form(cost: float | None, shown: str) -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET, cost_usd=None if cost is None else Decimal(str(cost)))
        head, row = (await here.run("runs")).stdout.splitlines()
        assert row[head.index("USD") :].split("  ")[0].strip() == shown


async def test_a_status_may_be_written_small() -> None:
    async with desk() as here:
        await here.stands(Status.SUSPENDED, Reason.BUDGET)
        assert ID in (await here.run("runs", "--status", "suspended")).stdout
        assert ID not in (await here.run("runs", "--status", "running")).stdout
