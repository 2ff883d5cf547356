"""A process that cannot outlive us: the child of a guard, which notices when we end, however we end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local.places import keeping

GUARD = Path(__file__).with_name("guard.py")
POLL = 0.02  # seconds
TAIL = 12  # lines of the log in an error


class GuardedProcess:
    """`command`, running in `directory` until it ends, `stop` is called or this process dies.

    Its output is appended to the file `log`; `end` is the signal that stops it; it keeps the descriptor `lock` open. `unroot`:
    where we are root, it runs as nobody, to whom `directory` then belongs."""

    def __init__(
        self, command: Sequence[str], directory: Path, log: Path, end: signal.Signals, lock: int, *, unroot: bool = False
    ) -> None:
        self.log, self._pid_file = log, log.with_suffix(".pid")
        with keeping(log.parent):
            self._pid_file.unlink(missing_ok=True)
            output = log.open("ab")
        owned = str(directory) if unroot and os.geteuid() == 0 else ""
        plan = {
            "command": list(command),
            "parent": os.getpid(),
            "end": end,
            "pid_file": str(self._pid_file),
            "inherit": [lock],
            "unroot": owned,
        }
        with output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", GUARD, json.dumps(plan)],
                bufsize=0,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal reaches us alone
                pass_fds=[lock],
            )

    @property
    def pid(self) -> int:
        """Of the server itself, not of its guard; known at the latest when the server answers."""
        return int(self._pid_file.read_text())

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    @property
    def killed(self) -> str:
        """Which signal ended it, or its guard, for people; empty where none has."""
        code = self._guard.poll() or 0
        return how_it_ended(code) if code < 0 else ""

    def check_alive(self) -> None:
        """StackError, with the end of its log, if it has ended."""
        if (code := self._guard.poll()) is not None:
            raise StackError(self._failure(code, 0))

    def wait_until(self, done: Callable[[], bool], timeout: float) -> None:
        """Return when `done()`; StackError, with the end of the log, if the process ends first or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            code = self._guard.poll()  # before done(): a process may end between the two
            if done():
                return
            if code is not None or time.monotonic() > deadline:
                raise StackError(self._failure(code, timeout))
            time.sleep(POLL)

    def finish(self, timeout: float) -> None:
        """Wait for exit code 0; StackError for any other, or none within `timeout` seconds."""
        try:
            self.wait_until(lambda: self._guard.poll() == 0, timeout)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask it to end and wait until it has. Harmless when it has ended."""
        pipe = self._guard.stdin
        if pipe and not pipe.closed:
            with contextlib.suppress(BrokenPipeError), pipe:
                pipe.write(b"stop")
        self._guard.wait()

    def kill(self) -> None:
        """kill -9."""
        if self._guard.poll() is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has not begun yet, or ended just now
                os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def _failure(self, code: int | None, timeout: float) -> str:
        came = f"did not answer within {timeout:.0f} s" if code is None else how_it_ended(code)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL:])
        return f"{self.log.stem} {came}; the end of {self.log}:\n{tail}"


def how_it_ended(code: int) -> str:
    """``code`` as of `subprocess.Popen.returncode`.

    >>> how_it_ended(1), how_it_ended(-9)
    ('ended with exit code 1', 'was killed by signal 9 (SIGKILL)')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    named = -code in {*signal.Signals}
    return f"was killed by signal {-code}" + (f" ({signal.Signals(-code).name})" if named else "")
