"""Files, directories, hosts and ports that somebody gives, and that cannot be used: one line, which names what was given."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runfold.cli import processes
from runfold.cli.app import app
from runfold.cli.wiring import api as api_wiring
from runfold.cli.wiring import topic as topic_wiring
from runfold.config import Settings
from runfold.core.errors import ConfigError, StackError
from runfold.local import loopback
from runfold.local.places import absolute, keeping
from tests.unit.test_audit_files import GOLDEN

LONG = "n" * 300  # more than a file system takes as one name
GIVEN = ("--bootstrap", "localhost:1", "--dsn", "postgresql://localhost:1/x")


def runfold(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runfold.cli", *words]
    environment = os.environ | {"RUNFOLD_LOG_FORMAT": "console"} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("app_file", [f"{LONG}.py", f"{LONG}/agents.py:agent"])
def test_an_app_that_cannot_be_looked_for_is_one_line(app_file: str) -> None:
    ended = runfold("worker", "--app", app_file, *GIVEN[:2])
    assert (ended.returncode, ended.stderr.count("\n")) == (78, 1), ended.stderr
    assert f"app '{app_file}': " in ended.stderr
    assert "cannot be read: File name too long" in ended.stderr


def test_dev_looks_for_its_app_before_it_starts_anything(tmp_path: Path) -> None:
    ended = runfold("dev", "--app", "mine.py", "--state", str(tmp_path / "state"), *GIVEN)
    assert (ended.returncode, ended.stderr) == (78, "runfold: app 'mine.py': there is no file mine.py\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("directory", ["~nobody-by-this-name/state", f"/tmp/{LONG}"])
def test_a_directory_of_dev_that_cannot_be_is_one_line(directory: str) -> None:
    ended = runfold("dev", "--state", directory, *GIVEN)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert ended.stderr.startswith(f"runfold: nothing can be kept in {directory}: ")


@pytest.mark.parametrize("directory", ["~nobody-by-this-name/cache", f"/tmp/{LONG}"])
def test_doctor_misses_a_cache_that_cannot_be(directory: str) -> None:
    told = CliRunner().invoke(app, ["doctor", "--json"], env={"RUNFOLD_CACHE_DIR": directory})
    (kafka,) = [check for check in json.loads(told.stdout) if check["name"] == "Kafka"]
    assert (told.exit_code, kafka["ok"], kafka["remedy"]) == (1, False, "set RUNFOLD_CACHE_DIR to another directory")
    assert directory in kafka["detail"]


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_of_dev_that_is_none_is_refused(port: str) -> None:
    told = CliRunner().invoke(app, ["dev", "--port", port], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert "Invalid value for '--port'" in told.output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that has nothing behind it: it is bound to port 4711, and ends."""

    async def bound(_: Settings, on_bound: Callable[[int], None]) -> None:
        on_bound(4711)

    monkeypatch.setattr(topic_wiring, "check_log", lambda _: None)
    monkeypatch.setattr(api_wiring, "serve_api", bound)
    monkeypatch.setattr(processes, "speak", lambda *_: None)


@pytest.mark.usefixtures("served")
def test_a_ready_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / LONG, tmp_path / "no" / "such"):
        error = CliRunner().invoke(app, ["api", *GIVEN, "--ready-file", str(file)]).exception
        assert isinstance(error, ConfigError)
        assert str(error).startswith(f"--ready-file {file} cannot be written: ")


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:4711"), ("::1", "http://[::1]:4711")])
def test_the_url_in_a_ready_file_is_one(tmp_path: Path, host: str, url: str) -> None:
    told = CliRunner().invoke(app, ["api", *GIVEN, "--host", host, "--ready-file", str(tmp_path / "url")])
    assert (told.exit_code, (tmp_path / "url").read_text()) == (0, url)


@pytest.mark.parametrize("host", ["::", "2001:db8::1"])
def test_an_ipv6_address_is_bracketed(host: str) -> None:
    assert loopback.url(host, 80) == f"http://[{host}]:80"


@pytest.mark.parametrize("option", ["--topic", "--bootstrap"])
@pytest.mark.parametrize(("words", "code"), [(["verify-log", str(GOLDEN)], 2), (["replay", "x", "--file", str(GOLDEN)], 78)])
def test_a_topic_beside_a_file_is_refused(words: list[str], code: int, option: str) -> None:
    ended = runfold(*words, option, "a")
    expected = f"runfold: expected a topic or a file, got a file and, for a topic, {option}: leave out either\n"
    assert (ended.returncode, ended.stderr) == (code, expected)


def test_a_topic_of_the_environment_is_no_word_against_a_file() -> None:
    told = CliRunner().invoke(app, ["verify-log", str(GOLDEN), "--partitions", "2"], env={"RUNFOLD_TOPIC": "a"})
    assert told.exit_code == 0


def test_what_cannot_be_kept_names_the_directory(tmp_path: Path) -> None:
    expected = rf"nothing can be kept in {tmp_path}: .*directory.*; mend it or choose another directory"
    with pytest.raises(StackError, match=expected), keeping(tmp_path):
        tmp_path.write_text("")


def test_a_port_that_cannot_be_remembered_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "worker-1.port").mkdir()
    with pytest.raises(StackError, match=f"nothing can be kept in {tmp_path}: "):
        loopback.choose(tmp_path / "worker-1.port", [0])


def test_a_home_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute(Path("~/state")) == tmp_path.resolve() / "state"
