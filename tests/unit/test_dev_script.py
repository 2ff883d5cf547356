"""`./dev`: what a command of the set-up environment is given."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_command_runs_where_whoever_asks_stands(tmp_path: Path) -> None:
    """What it is given are paths of theirs."""
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    bin_ = checkout / ".venv" / "bin"
    for directory in (bin_, elsewhere):
        directory.mkdir(parents=True)
    shutil.copy(ROOT / "dev", checkout)
    (bin_ / "runfold").write_text('#!/bin/sh\npwd\necho "$@"\n')
    (bin_ / "runfold").chmod(0o755)
    (checkout / "pyproject.toml").touch()
    os.utime(checkout / "pyproject.toml", (0, 0))  # older than the set-up
    for file in ("requirements.lock", ".venv/runfold-setup"):  # it is set up
        (checkout / file).write_text("locked")
    ran = subprocess.run([checkout / "dev", "runfold", "a b", "c"], cwd=elsewhere, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [str(elsewhere.resolve()), "a b c"]
