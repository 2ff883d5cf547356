"""One stack per directory: a lock that lives as long as any process of the stack."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local.progress import Progress, silent

LOCK_TIMEOUT = 25.0  # seconds; the processes of a killed owner need a moment to stop
SAY_AFTER = 1.0  # seconds of waiting that nobody has to be told about


@contextlib.contextmanager
def locked(file: Path, progress: Progress = silent) -> Iterator[int]:
    """A descriptor that holds the lock on `file`. Processes that inherit it keep the lock until the last of them is gone: this is
    how a start waits for the processes of a killed owner. At the end of the block we ourselves let go of it.

    The file says our pid, for those who wait. StackError after `LOCK_TIMEOUT`, or where nothing can be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StackError(f"nothing can be kept in {file.parent}: {error}; mend it or choose another directory") from error
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
            said = f"waiting for {home}: it is in use by another stack{_owner(lock)}"
            progress(said, 0, 1)
        time.sleep(0.05)
    raise StackError(f"{home} is in use by another stack{_owner(lock)}: stop it, or choose another directory")


def _taken(lock: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _owner(lock: int) -> str:
    """Who wrote the pid may be gone, and its servers about to stop."""
    pid = os.pread(lock, 20, 0).decode("ascii", "replace")
    return f" (pid {pid})" if pid else ""
