"""T04: whatever a tool prints, the worker's output stays one JSON object a line, and its own log goes on."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cases.printing import RUN


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """Every line that came out of the process, stdout and stderr."""
    done = subprocess.run([sys.executable, "-m", "tests.cases.printing"], capture_output=True, check=True, timeout=60)
    lines = [line for line in (done.stdout + done.stderr).decode().split("\n") if line]
    records = [json.loads(line) for line in lines]
    assert all(isinstance(record, dict) for record in records), "T04.1"
    return records


def printed(said: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {record["message"]: record for record in said if record["log"]["logger"] == "runfold.output"}


def test_t04_1_every_line_is_one_object_with_ecs_fields(said: list[dict[str, Any]]) -> None:
    assert said
    for record in said:
        assert record.keys() >= {"@timestamp", "log.level", "message", "log", "service", "process"}, "T04.1"
        assert len(record["message"]) < 2100, "T04.1: cut"


@pytest.mark.parametrize("line", ["hello", "two words", "not json: {", "hello from a task"])
def test_t04_1_what_python_prints_says_in_which_run(said: list[dict[str, Any]], line: str) -> None:
    assert printed(said)[line]["runfold"]["run"]["id"] == RUN


def test_t04_1_no_escape_reaches_a_terminal(said: list[dict[str, Any]]) -> None:
    assert any("red" in line for line in printed(said))
    assert "\\u001b" not in json.dumps(said)


def test_t04_1_a_line_without_an_end_is_cut(said: list[dict[str, Any]]) -> None:
    (line,) = (line for line in printed(said) if line.startswith("mmm"))
    assert line.endswith("(998000 characters more)")


PAST_PYTHON = ["written to 1", "written to 2", "a child", "its error", "a child of the stream", "bytes of the stream"]


@pytest.mark.parametrize("line", PAST_PYTHON)
def test_t04_1_what_goes_past_python_is_there_too(said: list[dict[str, Any]], line: str) -> None:
    assert line in printed(said)


def test_t04_1_what_others_log_is_there_too(said: list[dict[str, Any]]) -> None:
    lines = " ".join(record["message"] for record in said)
    for text in ("a warning", "PLAIN logged plainly", "logged by nobody"):
        assert text in lines


def test_t04_2_results_are_unpolluted_and_our_log_works_afterwards(said: list[dict[str, Any]]) -> None:
    ours = [record["message"] for record in said if record["log"]["logger"] == "runfold.step"]
    names = {"prints": "printed", "prints_async": "printed", "much": "much", "beneath": "beneath", "hijacks": "hijacked"}
    assert ours == [*(f"RESULT {name} {result}" for name, result in names.items()), "still here"]
