"""Two stacks and one directory: the second says whom it waits for, and waits longer than what a killed one leaves may take."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.config import Settings
from runfold.core.errors import StackError
from runfold.local import guard, lock
from runfold.local.lock import locked
from runfold.worker.lease import GRACE_SECONDS

PATIENCE = 20.0
OWNER = """
import signal, sys
from pathlib import Path
from runfold.local.lock import locked
from runfold.local.process import GuardedProcess
home = Path(sys.argv[1])
with locked(home / "lock") as descriptor:
    words = [sys.executable, "-c", sys.argv[2], str(home / "end")]
    worker = GuardedProcess(words, home, home / "worker-1.log", signal.SIGTERM, descriptor)
    worker.wait_until(lambda: (home / "worker-1.pid").exists() and "up" in worker.log.read_text(), 20)
    print("up", flush=True)
    signal.pause()
"""
DRAINING = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
open(sys.argv[1]).read()
"""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Pids of an owner that was killed with kill -9, and of its worker, which drains until somebody writes to the FIFO `end`."""
    os.mkfifo(tmp_path / "end")
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), DRAINING], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
    worker = int((tmp_path / "worker-1.pid").read_text())
    try:
        yield owner.pid, worker
    finally:
        if lives(worker):
            os.kill(worker, signal.SIGKILL)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_who_waits_says_for_whom_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SAY_AFTER", 0.0)
    told: list[tuple[str, int, int]] = []
    first = locked(tmp_path / "lock")
    first.__enter__()

    def progress(what: str, done: int, total: int) -> None:
        told.append((what, done, total))
        if not done:
            first.__exit__(None, None, None)

    with locked(tmp_path / "lock", progress):
        what = f"waiting for {tmp_path}: it is in use by another stack (pid {os.getpid()})"
        assert told == [(what, 0, 1), (what, 1, 1)]


def test_who_waited_in_vain_says_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_TIMEOUT", 0.1)
    said = re.escape(f"in use by another stack (pid {os.getpid()}): stop it")
    with locked(tmp_path / "lock"), pytest.raises(StackError, match=said), locked(tmp_path / "lock"):
        pass


def test_a_start_waits_longer_than_what_a_killed_one_leaves_may_drain() -> None:
    drain = Settings.model_fields["drain_seconds"].default + 2 * GRACE_SECONDS  # of the worker, and then of its keeper
    assert drain < guard.PATIENCE < lock.LOCK_TIMEOUT


def test_of_a_killed_owner_it_is_said_that_it_is_gone_and_who_is_not(
    tmp_path: Path, left: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "older.pid").write_text(str(os.getpid()))  # of another start: by now it is somebody else's
    os.utime(tmp_path / "older.pid", (0, 0))
    (tmp_path / "worker-2.pid").write_text("")
    monkeypatch.setattr(lock, "LOCK_TIMEOUT", 0.1)
    owner, worker = left
    said = f"the stack that used it (pid {owner}) is gone, what it started is still ending (worker-1: pid {worker}): stop it, or"
    with pytest.raises(StackError, match=re.escape(f"{tmp_path}: {said} ")), locked(tmp_path / "lock"):
        pass


def test_the_next_one_starts_when_what_a_killed_one_left_has_ended(
    tmp_path: Path, left: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "SAY_AFTER", 0.0)
    told: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append(what)
        if not done:
            (tmp_path / "end").write_text("")

    began = time.monotonic()
    with locked(tmp_path / "lock", progress):
        assert not lives(left[1])
    assert f"(pid {left[0]}) is gone" in told[0]
    assert time.monotonic() < began + PATIENCE
