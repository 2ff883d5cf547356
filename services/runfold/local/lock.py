"""One stack per directory: a lock that lives as long as any process of the stack."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local.guard import PATIENCE
from runfold.local.places import keeping
from runfold.local.progress import Progress, silent

LOCK_TIMEOUT = PATIENCE + 10.0  # seconds; the processes of a killed owner finish what they do, until their guards kill them
SAY_AFTER = 1.0  # seconds of waiting that nobody has to be told about


@contextlib.contextmanager
def locked(file: Path, progress: Progress = silent) -> Iterator[int]:
    """A descriptor that holds the lock on `file`. Processes that inherit it keep the lock until the last of them is gone: this is
    how a start waits for the processes of a killed owner. At the end of the block we ourselves let go of it.

    The file says our pid, for those who wait. StackError after `LOCK_TIMEOUT`, or where nothing can be written."""
    with keeping(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for(lock, file.parent, progress)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _wait_for(lock: int, home: Path, progress: Progress) -> None:
    began, said = time.monotonic(), ""
    while (waited := time.monotonic() - began) < LOCK_TIMEOUT:
        if _taken(lock):
            if said:
                progress(said, 1, 1)
            return
        if waited >= SAY_AFTER and not said:
            said = f"waiting for {home}: {_whose(lock, home)}"
            progress(said, 0, 1)
        time.sleep(0.05)
    raise StackError(f"{home}: {_whose(lock, home)}: stop it, or choose another directory")


def _taken(lock: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _whose(lock: int, home: Path) -> str:
    """Who wrote the pid may be gone, and its processes about to end."""
    owner = os.pread(lock, 20, 0).decode("ascii", "replace")
    if not owner.isdecimal():
        return "it is in use by another stack"
    if _lives(int(owner)):
        return f"it is in use by another stack (pid {owner})"
    left = ", ".join(_left(home, os.fstat(lock).st_mtime))
    return f"the stack that used it (pid {owner}) is gone, what it started is still ending" + (f" ({left})" if left else "")


def _left(home: Path, since: float) -> list[str]:
    """Those processes of the last owner that live: each guard writes whom it guards. An older file may name anybody by now."""
    found = []
    for file in sorted(home.glob("*.pid")):
        with contextlib.suppress(OSError, ValueError):  # it may be gone, or not be one of ours
            if file.stat().st_mtime >= since and _lives(pid := int(file.read_text())):
                found.append(f"{file.stem}: pid {pid}")
    return found


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True
