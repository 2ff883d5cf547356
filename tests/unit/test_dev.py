"""`runfold dev`: what each process is told, without any of them running."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from runfold.cli.deployment import Deployment
from runfold.cli.options import settings
from runfold.cli.stack import who_answers
from runfold.core.errors import ConfigError
from runfold.local.process import GuardedProcess
from runfold.local.progress import silent


class Told(Deployment):
    """Starts nothing; ``ports``: the metrics port that each process is given, by name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, settings(), silent)
        self.ports: dict[str, str | None] = {}

    def _spawn(self, name: str, words: list[str], environment: Mapping[str, str] = {}) -> GuardedProcess:
        self.ports[name] = environment.get("RUNFOLD_METRICS_PORT")
        return cast(GuardedProcess, None)


def started(root: Path) -> Told:
    told = Told(root)
    told.start_projector()
    for name in ("worker-1", "worker-2", "worker-1"):
        told.start_worker(name, "app.py:app", {"RUNFOLD_LOG_FORMAT": "console"})
    return told


def test_each_process_serves_metrics_at_a_port_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNFOLD_METRICS_PORT", "9100")
    assert started(tmp_path).ports == {"projector": "9100", "worker-1": "9101", "worker-2": "9102"}
    assert started(tmp_path).metrics_ports == {"projector": 9100, "worker-1": 9101, "worker-2": 9102}


def test_no_process_serves_metrics_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNFOLD_METRICS_PORT", raising=False)
    assert set(started(tmp_path).ports.values()) == {None}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No credentials, no URL."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "RUNFOLD_MODEL_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_it_is_said_which_model_answers(nobody: pytest.MonkeyPatch) -> None:
    assert who_answers(settings()).startswith("a script")
    nobody.setenv("ANTHROPIC_API_KEY", "k-1")
    assert who_answers(settings()) == "the Messages API, with ANTHROPIC_API_KEY"
    nobody.setenv("RUNFOLD_MODEL_BASE_URL", "http://gateway")
    assert who_answers(settings()) == "http://gateway, with ANTHROPIC_API_KEY"


def test_no_script_answers_for_a_model_that_was_named(nobody: pytest.MonkeyPatch) -> None:
    nobody.setenv("RUNFOLD_MODEL_BASE_URL", "http://gateway")
    with pytest.raises(ConfigError, match="RUNFOLD_MODEL_BASE_URL is http://gateway, and there are no credentials"):
        who_answers(settings())
