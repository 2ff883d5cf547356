"""The fluent logs of `runfold.testing`: as their page says, never changed, and folded as the log would be."""

import sys

import pytest

from runfold.core import decisions
from runfold.core.events import Reason
from runfold.core.run import fold
from runfold.testing import given
from runfold.testing.given import text, tool_use

PAGE = sys.modules["runfold.testing.given"].__doc__ or ""


def test_the_example_of_the_docstring_runs() -> None:
    example = "\n".join(line[4:] for line in PAGE.splitlines() if line.startswith("    "))
    assert "decisions()" in example
    exec(example, {"given": given, "tool_use": tool_use, **vars(decisions)})


def test_a_history_is_the_log_it_folds() -> None:
    history = given().started().answers(text("a"), tool_use("t")).finished_tool("t").failed_model(Reason.OVERLOADED, retry_in=5)
    assert fold(history.records) == history.run
    assert [record.offset for record in history.records] == list(range(len(history.records)))


def test_branches_of_a_history_do_not_meet() -> None:
    asked = given().started().answers(tool_use("a"), tool_use("b"))
    one, two = asked.finished_tool("a"), asked.finished_tool("b")
    assert [[call.id for call in history.run.calls if call.status] for history in (asked, one, two)] == [[], ["a"], ["b"]]


def test_a_call_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(LookupError, match="no tool_use 'x', only \\['a', 'b'\\]"):
        given().started().answers(tool_use("a"), tool_use("b")).finished_tool("x")
