"""The workers of `runfold dev`: real processes that say how they are, and are killed, where none of ours has to be started."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runfold.cli import upkeep
from runfold.cli.deployment import Deployment
from runfold.cli.options import settings
from runfold.cli.upkeep import REVIVALS, Upkeep
from runfold.core.errors import StackError
from runfold.local import loopback
from runfold.local.process import GuardedProcess, how_it_ended
from runfold.local.progress import silent

PATIENCE = 20.0
STAND_IN = """
import os, time
from prometheus_client import CollectorRegistry, Gauge
from runfold.telemetry.serving import expose
registry = CollectorRegistry()
Gauge("runfold_partitions_owned", "", registry=registry).set(2)
expose(registry, dict, os.environ["RUNFOLD_HOST"], int(os.environ["RUNFOLD_METRICS_PORT"]))
print("up", flush=True)
time.sleep(600)
"""


class Stage(Deployment):
    """Its workers are stand-ins, its servers are given and never asked."""

    def start_worker(self, name: str, app: str, environment: Mapping[str, str] = {}) -> GuardedProcess:
        given = {"RUNFOLD_HOST": self.settings.host, **self._metrics(name)}
        return self._spawn(name, ["-c", app], {**given, **environment})


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.delenv("RUNFOLD_METRICS_PORT", raising=False)
    monkeypatch.setattr("runfold.cli.deployment.create_topic", lambda *_: True)
    with Stage(tmp_path, settings(bootstrap="127.0.0.1:1", dsn="postgresql://127.0.0.1:1/none"), silent) as made:
        yield made


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(deployment: Stage, name: str) -> None:
    process = deployment._processes[name]
    until(lambda: deployment.root.joinpath(f"{name}.pid").exists())
    deployment.kill(name)
    until(lambda: process.killed)


def looked(workers: Upkeep, said: list[str]) -> list[str]:
    workers.look()
    return said


def test_it_says_once_that_all_partitions_are_owned_and_again_after_a_kill(deployment: Stage) -> None:
    said: list[str] = []
    workers = Upkeep(deployment, 4, said.append)
    for name in ("worker-1", "worker-2"):
        workers.start(name, STAND_IN, {})
    ready = "ready       2 workers own all 4 partitions: runs are carried"
    until(lambda: looked(workers, said))
    workers.look()
    assert said == [ready]
    kill(deployment, "worker-2")
    until(lambda: len(looked(workers, said)) == 3)
    assert said[1:] == ["worker-2 was killed by signal 9 (SIGKILL): a new one is started", ready]
    assert deployment.log_of("worker-2").read_text().split() == ["up", "up"], "what the first one said is still there"


@pytest.mark.parametrize("host", ["::1", "::"])
def test_workers_are_asked_at_an_ipv6_address_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("runfold.cli.deployment.create_topic", lambda *_: True)
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    (port,), said = loopback.choose(tmp_path / "port", [0]), list[str]()
    chosen = settings(bootstrap="127.0.0.1:1", dsn="postgresql://127.0.0.1:1/none", host=host, metrics_port=port)
    with Stage(tmp_path, chosen, silent) as made:
        workers = Upkeep(made, 2, said.append)
        workers.start("worker-1", STAND_IN, {})
        until(lambda: looked(workers, said))


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_partitions_that_nobody_owns_are_not_carried(deployment: Stage) -> None:
    said: list[str] = []
    workers = Upkeep(deployment, 5, said.append)
    workers.start("worker-1", STAND_IN, {})
    until(lambda: "up" in deployment.log_of("worker-1").read_text())
    workers.look()
    assert said == []


def test_too_many_kills_end_it(deployment: Stage) -> None:
    said: list[str] = []
    workers = Upkeep(deployment, 4, said.append)
    workers.start("worker-1", STAND_IN, {})
    for _ in range(REVIVALS):
        kill(deployment, "worker-1")
        workers.look()
    assert len(said) == REVIVALS
    kill(deployment, "worker-1")
    with pytest.raises(StackError, match=r"worker-1 was killed by signal 9 \(SIGKILL\), within 60 s after 3 others"):
        workers.look()


def test_kills_that_lie_far_apart_do_not(deployment: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WINDOW", 0.0)
    workers = Upkeep(deployment, 4, lambda line: None)
    workers.start("worker-1", STAND_IN, {})
    for _ in range(REVIVALS + 1):
        kill(deployment, "worker-1")
        workers.look()


def test_a_worker_that_ends_of_itself_ends_it(deployment: Stage) -> None:
    workers = Upkeep(deployment, 4, lambda line: None)
    workers.start("worker-1", "raise SystemExit(78)", {})
    with pytest.raises(StackError, match="worker-1 ended with exit code 78"):
        until(lambda: looked(workers, []))


def test_what_is_no_worker_ends_it_also_when_it_is_killed(deployment: Stage) -> None:
    workers = Upkeep(deployment, 4, lambda line: None)
    deployment._spawn("api", ["-c", STAND_IN], {})
    kill(deployment, "api")
    with pytest.raises(StackError, match=r"api was killed by signal 9 \(SIGKILL\)"):
        workers.look()


def test_a_second_one_with_the_same_directory_is_refused_although_the_servers_are_given(
    deployment: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would join the group of the first, and take its logs away."""
    monkeypatch.setattr("runfold.local.lock.LOCK_TIMEOUT", 0.1)
    deployment._spawn("worker-1", ["-c", "print('mine')"], {})
    log = deployment.log_of("worker-1")
    until(lambda: "mine" in log.read_text())
    second = Deployment(deployment.root, deployment.settings, silent)
    with pytest.raises(StackError, match=rf"in use by another stack \(pid {os.getpid()}\): stop it"), second:
        pass
    assert "mine" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_which_signal_ended_it_is_said(deployment: Stage, number: signal.Signals) -> None:
    """An exit code of a program's own is never taken for a signal."""
    plain = f"import os, signal; signal.signal({number}, 0) if {number} != 9 else 0; os.kill(os.getpid(), {number})"
    process = deployment._spawn("worker-1", ["-c", plain], {})
    until(lambda: process.killed)
    assert process.killed == f"was killed by signal {int(number)} ({number.name})"


def test_an_exit_code_is_said_as_it_is(deployment: Stage) -> None:
    process = deployment._spawn("worker-1", ["-c", "raise SystemExit(247)"], {})
    with pytest.raises(StackError, match="worker-1 ended with exit code 247"):
        until(lambda: process.check_alive())
    assert (process.killed, how_it_ended(255)) == ("", "ended with exit code 255")
