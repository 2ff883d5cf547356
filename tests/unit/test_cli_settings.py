"""Settings that cannot be used are one line that names the variable."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from runfold.cli.app import app
from runfold.cli.options import settings
from runfold.config import Settings
from runfold.core.errors import ConfigError

BAD = [
    ("GROUP", "", "expected 1 to 249 printable characters, got ''"),  # the Kafka client ends the process
    ("GROUP", " ", "expected 1 to 249 printable characters, got ' '"),
    ("NAMESPACE", "", "expected 1 to 249 printable characters, got ''"),
    ("NAMESPACE", "a\nb", "expected 1 to 249 printable characters, got 'a\\nb'"),
    *(
        ("TOPIC", name, f"expected a topic's name, 1 to 244 of a-z A-Z 0-9 . _ -, got {name!r}")
        for name in ("", "..", "a b", "ä", "a" * 245)
    ),
    *(
        ("BOOTSTRAP", hosts, f"expected host:port[,host:port], got {hosts!r}")
        for hosts in (" ", "a:b", "a:0", "a:65536", "a:1,", "a b:1", "http:///a")
    ),
    *(
        ("HOST", host, f"expected an address or the name of a host, 0.0.0.0 for every address, got {host!r}")
        for host in ("", " ", "[::1]", "http://a", "a..b", "a" * 64)  # the system takes the first for every address
    ),
    ("MODEL_BASE_URL", "foo", "expected http://host[:port] or https://…, got 'foo'"),
    ("MAVEN_MIRROR", "https://", "expected http://host[:port] or https://…, got 'https://'"),
    ("REGISTRY_URL", "http://a:b", "expected http://host[:port] or https://…, got 'http://a:b'"),
    ("REGISTRY_URL", "ftp://key:secret@a", "expected http://host[:port] or https://…"),
    ("HEARTBEAT_MS", "10000", "expected at most a third of RUNFOLD_SESSION_TIMEOUT_MS, 2000 of 6000, got '10000'"),
    ("SESSION_TIMEOUT_MS", "999999999", "Input should be less than or equal to 3600000, got '999999999'"),
]
FLOATS = [name for name, field in Settings.model_fields.items() if field.annotation is float]


def told(**given: object) -> str:
    with pytest.raises(ConfigError) as error:
        settings(**given)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_setting_that_is_no_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNFOLD_KAFKA", "{bad")
    assert told().startswith("RUNFOLD_KAFKA is not JSON: Expecting property name")


@pytest.mark.parametrize(("name", "value", "expected"), BAD)
def test_a_setting_that_nothing_can_be_done_with_says_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"RUNFOLD_{name}", value)
    assert told() == f"RUNFOLD_{name}: {expected}"


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300"])
def test_seconds_are_finite(name: str, value: str) -> None:
    assert told(**{name: value}).startswith(f"RUNFOLD_{name.upper()}: Input should be ")


def test_there_are_seconds_to_test() -> None:
    assert "drain_seconds" in FLOATS


def test_heartbeats_are_held_to_the_session_that_was_asked_for() -> None:
    expected = "RUNFOLD_HEARTBEAT_MS: expected at most a third of RUNFOLD_SESSION_TIMEOUT_MS, 200 of 600, got 250"
    assert told(session_timeout_ms=600) == expected
    assert settings(session_timeout_ms=600, heartbeat_ms=200).heartbeat_ms == 200


@pytest.mark.parametrize("hosts", ["", "a", "a:1, b:2", "[::1]:9092", "SASL_SSL://kafka-1.example:9094,127.0.0.1:1"])
def test_brokers_as_kafka_s_client_takes_them(hosts: str) -> None:
    assert settings(bootstrap=hosts).bootstrap == hosts


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::", "::1", "fe80::1%eth0", "api.example", "bücher.example"])
def test_hosts_that_can_be_listened_on(host: str) -> None:
    assert settings(host=host).host == host


def test_a_command_says_it_in_one_line_and_ends_with_78() -> None:
    ended = _runfold("topic", "check", RUNFOLD_GROUP="")
    assert (ended.returncode, ended.stderr) == (78, "runfold: RUNFOLD_GROUP: expected 1 to 249 printable characters, got ''\n")


def test_an_address_of_the_api_that_is_none_is_one_line() -> None:
    ended = _runfold("runs", "--api", "http://[::1")
    expected = "runfold: expected http://host:port or https://… as the API's address, got 'http://[::1': "
    assert (ended.returncode, ended.stderr.startswith(expected), ended.stderr.count("\n")) == (1, True, 1)


def test_a_log_that_cannot_be_checked_for_a_setting_gives_no_verdict() -> None:
    assert CliRunner().invoke(app, ["verify-log"], env={"RUNFOLD_GROUP": "", "RUNFOLD_BOOTSTRAP": "localhost:1"}).exit_code == 2


def test_a_broker_that_is_away_is_one_line() -> None:
    """What the Kafka client tells meanwhile is for the logs of processes."""
    ended = _runfold("verify-log", "--bootstrap", "localhost:1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("runfold: no broker tells of topic runfold.runs: ")
    assert ended.stderr.count("\n") == 1


def _runfold(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runfold.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | variables)
