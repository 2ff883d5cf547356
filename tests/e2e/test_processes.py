"""Every process of a deployment, started as an operator starts it, and the command line that talks to them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runfold.cli.deployment import Deployment, wait_for
from runfold.cli.options import settings
from runfold.local.progress import silent
from runfold.testing import Script
from tests.cases.harness_processes import lines

END_SECONDS = 30.0
SCRIPT = Script().then_tool_use("toolu_1", "escalate", {"ticket": "ACME-17"}, 812, 64).then_text("It is escalated.", 1210, 140)
APP = """
from runfold import Agent, tool

@tool(side_effect="read")
def escalate(ticket: str) -> str:
    return f"{ticket} was escalated"

agent = Agent("default", model="claude-sonnet-5-5", tools=[escalate])
"""


@pytest.fixture
def deployment(bootstrap: str, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    name = f"processes-{uuid4().hex[:8]}"
    given = {"RUNFOLD_BOOTSTRAP": bootstrap, "RUNFOLD_DSN": dsn, "RUNFOLD_TOPIC": name, "RUNFOLD_GROUP": name}
    for key, value in {**given, "RUNFOLD_SESSION_TIMEOUT_MS": "2000"}.items():
        monkeypatch.setenv(key, value)
    with Deployment(tmp_path, settings(), silent) as deployment:
        yield deployment


def runfold(*words: str) -> list[Any]:
    """What a command prints: a JSON document per line."""
    command = [sys.executable, "-m", "runfold.cli", *words, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_run_from_the_command_line_through_every_process(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O9, O10: each writes JSON only, and ends well when it is asked to."""
    (tmp_path / "agents.py").write_text(APP)
    url = tmp_path / "url"
    model = {"RUNFOLD_MODEL_BASE_URL": deployment.start_scripted_model(SCRIPT), "ANTHROPIC_API_KEY": "scripted"}
    processes = [
        deployment.start_projector(),
        deployment.start_worker("worker", f"{tmp_path}/agents.py:agent", model),
        deployment.start("api", "api", "--port", "0", "--ready-file", str(url)),
    ]
    monkeypatch.setenv("RUNFOLD_API", wait_for("the API", lambda: url.read_text() if url.exists() else None))

    accepted, *told, watched = runfold("submit", "Escalate ACME-17.", "--token-budget", "50000", "--watch")
    steps = [line for line in told if line["kind"] != "TEXT"]
    assert {(step["seq"], step["kind"]) for step in steps} == {(1, "MODEL"), (2, "TOOL"), (3, "MODEL")}
    assert (watched["status"], watched["output"], watched["totalTokens"]) == ("SUCCEEDED", "It is escalated.", 2226)
    ((listed,),) = (page["runs"] for page in runfold("runs", "--status", "SUCCEEDED"))
    assert listed["id"] == accepted["id"]
    (replayed,) = runfold("replay", accepted["id"])
    assert (replayed["status"], replayed["output"], replayed["totalTokens"]) == ("SUCCEEDED", "It is escalated.", 2226)
    assert [message["role"] for message in replayed["messages"]] == ["user", "assistant", "user", "assistant"]

    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
        process.finish(END_SECONDS)
        assert lines(process.log)
        assert all(isinstance(json.loads(line), dict) for line in lines(process.log))
