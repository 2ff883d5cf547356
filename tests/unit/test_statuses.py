"""docs/statuses.md: every status and every reason is explained once, and comes with the status it says."""

import re
from pathlib import Path

import pytest

from runfold.core.decide import MAX_STARTS, MAX_TRUNCATED
from runfold.core.decisions import Finish, Suspend
from runfold.core.events import DEFAULT_MAX_STEPS, Reason, Status
from runfold.testing.given import History, given, text, tool_use

PAGE = (Path(__file__).parents[2] / "docs" / "statuses.md").read_text()
ROW = re.compile(r"^\| `([A-Z_]+)` \|([^|]*)\|([^|]+)\|", re.MULTILINE)
ROWS = {name: (status.strip(" `"), meaning.strip()) for name, status, meaning in ROW.findall(PAGE)}

STARTED = given().started()
NUMBERS = {3: "three", 4: "four"}


def test_every_status_and_every_reason_has_one_row() -> None:
    assert sorted(name for name, _, _ in ROW.findall(PAGE)) == sorted([*Status, *Reason])


def test_no_two_reasons_mean_the_same() -> None:
    meanings = [ROWS[reason][1] for reason in Reason]
    assert all(meanings)
    assert len(set(meanings)) == len(meanings)


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"started {NUMBERS[MAX_STARTS]} times" in ROWS[Reason.CRASH_LOOP][1]
    assert f"{NUMBERS[MAX_TRUNCATED]} answers in a row" in ROWS[Reason.MAX_TOKENS][1]
    assert f"by default {DEFAULT_MAX_STEPS}" in ROWS[Reason.STEP_CAP][1]


def killed() -> History:
    history = STARTED
    for _ in range(MAX_STARTS):
        history = history.started_model()
    return history


def cut() -> History:
    history = STARTED
    for _ in range(MAX_TRUNCATED):
        history = history.answers(stop_reason="max_tokens")
    return history


EXAMPLES = {
    Reason.FINAL_ANSWER: STARTED.answers(text("42")),
    Reason.CANCEL: STARTED.cancel_requested(),
    Reason.DEADLINE: given(timeout_ms=1).after(1),
    Reason.NO_PROGRESS: given(progress_timeout_ms=1).started().after(1),
    Reason.BUDGET: given(token_budget=10).started().answers(tool_use("a")),
    Reason.STEP_CAP: given(max_steps=1).started().answers(tool_use("a")),
    Reason.REFUSAL: STARTED.answers(stop_reason="refusal"),
    Reason.CONTEXT_WINDOW: STARTED.answers(stop_reason="model_context_window_exceeded"),
    Reason.MAX_TOKENS: cut(),
    Reason.INVALID_MODEL_RESPONSE: STARTED.answers(content_json="oops"),
    Reason.UNKNOWN_STOP_REASON: STARTED.answers(stop_reason="brand_new"),
    Reason.CONFIG: given(" "),
    Reason.OUTCOME_UNKNOWN: STARTED.answers(tool_use("a")).started_tool("a", repeatable=False),
    Reason.CRASH_LOOP: killed(),
    Reason.PREFIX_DRIFT: STARTED.started_model(prefix_digest="0" * 64).failed_model(Reason.OVERLOADED, retry_in=0),
} | {
    reason: STARTED.failed_model(reason)
    for reason in (
        Reason.UNSUPPORTED_RESPONSE,
        Reason.MODEL_REQUEST,
        Reason.MODEL_ACCESS,
        Reason.RATE_LIMITED,
        Reason.OVERLOADED,
        Reason.API_ERROR,
        Reason.CONNECTION,
        Reason.MODEL_TIMEOUT,
    )
}


@pytest.mark.parametrize("reason", EXAMPLES)
def test_a_reason_comes_with_the_status_that_the_page_gives_it(reason: Reason) -> None:
    decision = EXAMPLES[reason].decisions()[0]
    assert isinstance(decision, Finish | Suspend)
    assert decision.reason is reason
    status = decision.status if isinstance(decision, Finish) else Status.SUSPENDED
    assert ROWS[reason][0] == status


def test_reasons_without_an_example_are_those_that_others_decide() -> None:
    assert set(Reason) - set(EXAMPLES) == {
        Reason.UNSPECIFIED,
        Reason.UNKNOWN_AGENT,  # the worker's planner
        Reason.APPROVAL,  # not yet used, like the next
        Reason.UNREADABLE_RECORD,
        Reason.NEEDS_NEWER_VERSION,
        Reason.HISTORY_LOST,  # the projector
    }


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)", PAGE))
def test_links_lead_somewhere(link: str) -> None:
    assert (Path(__file__).parents[2] / "docs" / link).exists()
