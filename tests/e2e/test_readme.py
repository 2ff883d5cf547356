"""The README followed to the letter: serve the agent of 20 lines, ask it something, in a directory of one's own."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVE, ASK = re.findall(r"^\./dev runfold ((?:dev|submit) .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def runfold(command: str) -> list[str]:
    """As the script ``runfold`` would: the directory one is in is not searched for modules."""
    return [sys.executable, "-P", "-m", "runfold.cli", *shlex.split(command)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the user is. The file beside the agent has the name of a module that everybody imports."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "queue.py").write_text("raise AssertionError('a file of the user hides a module')")
    return tmp_path


@pytest.fixture
def served(home: Path, bootstrap: str, dsn: str) -> Iterator[str]:
    """The URL of the API; the servers are the session's, to be quick."""
    name = f"readme-{uuid.uuid4().hex[:8]}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTHROPIC_")}
    environment |= {"RUNFOLD_BOOTSTRAP": bootstrap, "RUNFOLD_DSN": dsn, "RUNFOLD_TOPIC": name, "RUNFOLD_GROUP": name}
    with subprocess.Popen(
        runfold(f"{SERVE} --port 0"), cwd=home, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "owns partition" in line:
                break
        try:
            yield re.findall(r"http://\S+", "".join(said))[0]
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
            print("".join(said), rest)


def test_the_agent_of_the_readme_is_served_and_answers(home: Path, served: str) -> None:
    command = runfold(f"{ASK} --api {served}")
    asked = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr
    assert re.search(r"^SUCCEEDED tokens=\d+$", asked.stdout, re.MULTILINE)
    assert "set ANTHROPIC_API_KEY" in asked.stdout, "without a key the script says what is missing"
