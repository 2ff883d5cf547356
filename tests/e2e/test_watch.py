"""`runfold watch` beside a real worker: what the model says while it says it, and what becomes of that when the worker dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from runfold.cli.deployment import Deployment, wait_for
from runfold.cli.options import settings
from runfold.local.progress import silent
from runfold.testing import FakeMessagesApi, Script, sse

END_SECONDS = 30.0
SAID = (sse.message_start(), sse.text_start(), sse.text_delta("Let me "), sse.text_delta("think"))
SCRIPT = Script().then_sse(*SAID, "hang").then_text("It is forty-two.")
APP = """
import os
from pathlib import Path
from runfold import Agent

Path(__file__).with_name("worker.pid").write_text(str(os.getpid()))
agent = Agent("default", model="claude-sonnet-5-5")
"""


@pytest.fixture
def model() -> Iterator[FakeMessagesApi]:
    with FakeMessagesApi(SCRIPT).in_thread() as api:
        yield api
        assert not api.violations


@pytest.fixture
def deployment(
    bootstrap: str, dsn: str, model: FakeMessagesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """All of it, with one worker. Its scripted model never ends its first answer."""
    name = f"watch-{uuid4().hex[:8]}"
    given = {"RUNFOLD_BOOTSTRAP": bootstrap, "RUNFOLD_DSN": dsn, "RUNFOLD_TOPIC": name, "RUNFOLD_GROUP": name}
    for key, value in {**given, "RUNFOLD_SESSION_TIMEOUT_MS": "2000"}.items():
        monkeypatch.setenv(key, value)
    (tmp_path / "agents.py").write_text(APP)
    with Deployment(tmp_path, settings(), silent) as deployment:
        deployment.start_projector()
        environment = {"RUNFOLD_MODEL_BASE_URL": model.url, "ANTHROPIC_API_KEY": "scripted"}
        deployment.start_worker("worker", f"{tmp_path}/agents.py:agent", environment)
        monkeypatch.setenv("RUNFOLD_API", deployment.start_api(0))
        yield deployment


@contextmanager
def watching(screen: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """``runfold submit --watch``, what it prints going to ``screen``."""
    command = [sys.executable, "-m", "runfold.cli", "submit", "What is it?", "--watch"]
    with screen.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


def shows(screen: Path, text: str) -> Callable[[], bool]:
    return lambda: text in screen.read_text()


def kill_worker(root: Path) -> None:
    """kill -9 of the worker process; its keeper starts the next one."""
    os.kill(int((root / "worker.pid").read_text()), signal.SIGKILL)


def test_the_first_words_are_shown_while_the_model_talks_and_taken_back_when_its_worker_is_killed(
    deployment: Deployment, model: FakeMessagesApi, tmp_path: Path
) -> None:
    screen = tmp_path / "screen"
    with watching(screen) as process:
        wait_for("the first words", shows(screen, "Let me think"), END_SECONDS)
        (hit,) = model.requests
        assert not hit.complete, "the call goes on"
        kill_worker(tmp_path)
        assert process.wait(END_SECONDS) == 0, screen.read_text()
    text = screen.read_text()
    places = [
        text.index(what)
        for what in (
            "Let me think\n",
            "\nseq=1 MODEL attempt=1 superseded: what it said is void\n",
            "It is forty-two.\n",
            "seq=1 MODEL stop=end_turn DONE",
            "SUCCEEDED tokens=",
        )
    ]
    assert places == sorted(places), text
    assert model.hits() == 2


def test_without_the_side_topic_the_run_and_its_watcher_go_on(
    deployment: Deployment, model: FakeMessagesApi, tmp_path: Path, admin: AdminClient
) -> None:
    side = f"{deployment.settings.topic}.live"
    admin.delete_topics([side])[side].result(20)
    screen = tmp_path / "screen"
    with watching(screen) as process:
        wait_for("the call", lambda: model.hits() == 1, END_SECONDS)
        wait_for("its line", shows(screen, "seq=1 MODEL STARTED"), END_SECONDS)
        kill_worker(tmp_path)
        assert process.wait(END_SECONDS) == 0, screen.read_text()
    assert "Let me think" not in screen.read_text()
    assert "SUCCEEDED tokens=" in screen.read_text()
