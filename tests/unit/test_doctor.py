"""`runfold doctor`: what was given is asked, and what does not answer is missing."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from runfold.cli.app import app
from runfold.local.loopback import HOST
from tests.unit.test_dsn import nobody_listens


def said_of_postgres(dsn: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the one line about PostgreSQL."""
    told = CliRunner().invoke(app, ["doctor", "--json", "--dsn", dsn])
    (line,) = [check for check in json.loads(told.stdout) if check["name"] == "PostgreSQL"]
    return told.exit_code, line


def test_a_dsn_that_nobody_answers_is_missing() -> None:
    code, line = said_of_postgres(f"postgresql://somebody:secret@{HOST}:{nobody_listens()}/runs")
    assert (code, line["ok"]) == (1, False)
    assert "secret" not in line["detail"]
    assert "RUNFOLD_DSN" in line["remedy"]


@pytest.mark.parametrize("dsn", ["foo", "postgresql://me:secret@host:1/x?nonsense=1"])
def test_a_dsn_that_cannot_be_read_is_missing(dsn: str) -> None:
    code, line = said_of_postgres(dsn)
    assert (code, line["ok"]) == (1, False)
    assert "expected postgresql://" in line["detail"]
    assert "secret" not in line["detail"]


def test_a_model_that_was_named_without_credentials_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNFOLD_MODEL_BASE_URL", "http://gateway")
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 1
    assert "MISSING  model: RUNFOLD_MODEL_BASE_URL is http://gateway" in told.stdout
