"""Signals that come to the processes of a worker: at any moment, and to those that do not answer them."""

import subprocess
import sys
from pathlib import Path

import pytest

STOPPED_WHILE_IT_STARTS = """
import os, signal, sys, time
from runfold.cli import main
from runfold.cli.wiring import topic

def hit(chosen):
    os.kill(os.getpid(), signal.{name})
    time.sleep(20)

topic.check_log = hit
sys.argv = ["runfold", "worker", "--app", "{app}:app", "--bootstrap", "localhost:1"]
main()
"""

UNDER_A_TOOL = """
import os, signal, subprocess
from runfold.cli.wiring.worker import answer_no_signals

answer_no_signals()
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
for number in (signal.SIGINT, signal.SIGTERM):
    child = subprocess.Popen(["sleep", "60"])
    child.send_signal(number)
    try:
        print(child.wait(0.5 if number == signal.SIGINT else 20))
    except subprocess.TimeoutExpired:
        print("goes on")
        child.kill()
        child.wait()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=15, check=False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_while_a_worker_starts_is_not_lost(name: str, tmp_path: Path) -> None:
    app = tmp_path / "agents.py"
    app.write_text("app = None\n")
    ended = run(STOPPED_WHILE_IT_STARTS.format(name=name, app=app))
    assert ended.returncode == 0, ended.stderr


def test_a_worker_process_outlives_signals_and_its_tools_can_terminate_what_they_start() -> None:
    ended = run(UNDER_A_TOOL)
    assert ended.stdout.split("\n")[:2] == ["goes on", "-15"], ended.stdout + ended.stderr
