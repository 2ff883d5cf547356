"""`runfold dev`: what each process is told, without any of them running."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from runfold.cli.deployment import Deployment
from runfold.cli.options import settings
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
