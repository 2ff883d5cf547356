"""The guard of one server, run as a program: ``python guard.py '{"command": [...], ...}'`` with the arguments of `guard`.

Runs the command until it ends, or until the parent writes to our stdin or dies. A process of its own, because a thread cannot
outlive a kill -9; with one thread while it starts the command, because preexec_fn and unshare need that. Imports nothing of
Runfold, so that it is there at once.
"""

import ctypes
import json
import os
import pwd
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
PATIENCE = 60  # seconds a server may take to stop


def guard(command: Sequence[str], parent: int, end: int, pid_file: str, inherit: Sequence[int], unroot: str) -> None:
    """Run `command`; stop it with the signal `end`. `unroot`: a directory to own as somebody who is not root, or empty."""
    if unroot:
        _leave_root(Path(unroot))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard(end), pass_fds=inherit)
    unfinished = Path(f"{pid_file}.new")
    unfinished.write_text(str(child.pid))
    unfinished.rename(pid_file)
    ended = threading.Thread(target=lambda: _end_like(child.wait()), daemon=True)
    ended.start()
    _until_parent_asks_or_dies(parent)
    child.send_signal(end)
    ended.join(PATIENCE)  # seldom returns: the thread ends this process as soon as the child is gone
    child.kill()
    ended.join()


def _end_like(code: int) -> None:
    """With the child's exit code, or of the signal that killed it: so whoever waits for us learns which."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).signal(-code, 0)  # its default effect; `signal.signal` is for the main thread only
        signal.pthread_kill(threading.get_ident(), -code)  # to this very thread: it ends here
    os._exit(code % 256)


def _until_parent_asks_or_dies(parent: int) -> None:
    """A pipe closes with its last holder, and a fork of the parent may hold it too: where we can, we watch the parent itself."""
    watched: list[int] = [sys.stdin.fileno()]
    try:
        watched.append(os.pidfd_open(parent))
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or not allowed
        pass
    select.select(watched, [], [])


def _die_with_guard(end: int) -> Callable[[], object] | None:
    """For the case that the guard itself is killed; only Linux knows how."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, end)


def _leave_root(owned: Path) -> None:
    """PostgreSQL refuses uid 0. In a user namespace root's files appear to be nobody's; where there is none, become nobody.

    Once they are nobody's, a namespace that knows of root alone could not reach them."""
    nobody = pwd.getpwnam("nobody")
    if owned.stat().st_uid == 0 and sys.platform == "linux" and ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{nobody.pw_uid} 0 1")
        Path("/proc/self/gid_map").write_text(f"{nobody.pw_gid} 0 1")
        return
    for path in (owned, *owned.rglob("*")):  # a no-op after the first time
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


if __name__ == "__main__":
    guard(**json.loads(sys.argv[1]))
