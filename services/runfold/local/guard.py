"""The guard of one server, run as a program: ``python guard.py '{"command": [...], ...}'`` with the fields of `guard`.

Runs the command until it ends or until our stdin, a pipe from the parent, is closed: by the parent's wish or by its death. A
process of its own, because a thread cannot outlive a kill -9; with one thread while it starts the command, because preexec_fn
and unshare need that. Imports nothing of Runfold, so that it is there at once.
"""

import ctypes
import json
import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
PATIENCE = 60  # seconds a server may take to stop


def guard(command: Sequence[str], end: int, pid_file: str, inherit: Sequence[int], unroot: str) -> None:
    """Run `command`; stop it with the signal `end`. `unroot`: a directory to own as somebody who is not root, or empty."""
    with Path(pid_file).open("w") as file:
        if unroot:
            _leave_root(Path(unroot))
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard(end), pass_fds=inherit)
        file.write(str(child.pid))
    ended = threading.Thread(target=lambda: os._exit(child.wait() % 256), daemon=True)
    ended.start()
    sys.stdin.buffer.read()
    child.send_signal(end)
    ended.join(PATIENCE)  # does not return: the thread ends this process as soon as the child is gone
    child.kill()
    ended.join()


def _die_with_guard(end: int) -> Callable[[], object] | None:
    """For the case that the guard itself is killed; only Linux knows how."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, end)


def _leave_root(owned: Path) -> None:
    """PostgreSQL refuses uid 0. In a user namespace root's files appear to be nobody's; where there is none, become nobody."""
    nobody = pwd.getpwnam("nobody")
    if sys.platform == "linux" and ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
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
