"""Settings that cannot be used are one line that names the variable."""

import pytest
from typer.testing import CliRunner

from runfold.cli.app import app
from runfold.core.errors import ConfigError


def test_a_setting_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNFOLD_KAFKA", "{bad")
    told = CliRunner().invoke(app, ["topic", "check", "--bootstrap", "localhost:1"])
    assert isinstance(told.exception, ConfigError)
    assert str(told.exception).startswith("RUNFOLD_KAFKA is not JSON: Expecting property name")
    assert "\n" not in str(told.exception)
