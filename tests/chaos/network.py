"""A machine of one's own in a network namespace, and the cable to it that can be cut: nothing passes, and nobody is told.

A cut gives each end of the cable a wrong address of the other: frames leave and are ignored where they arrive. So no connection
is refused or reset, as with a switch that has failed. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and ``ip``: see `why_not`.
"""

import ctypes
import os
import secrets
import shutil
import subprocess
from typing import Self

NAMESPACE = "CHAOS_NETWORK"  # environment variable: the namespace that a process is to live in
NOBODY = "02:00:00:00:00:01"  # a hardware address that no end has
_NEWNET = 0x40000000  # CLONE_NEWNET


class Machine:
    """Context manager: inside the block the namespace ``name`` exists, and `here` and `there` are the ends of its cable.

    The block is 10.213.x.y/30, x and y at random: other tests of this machine may have theirs.
    """

    def __init__(self) -> None:
        number = secrets.randbelow(1 << 14) * 4
        self.name = f"chaos-{number}"
        self.here, self.there = (f"10.213.{number >> 8}.{(number & 255) + host}" for host in (1, 2))
        self._our, self._their = f"ch{number}a", f"ch{number}b"

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._our, "type", "veth", "peer", "name", self._their, "netns", self.name)
            _ip("addr", "add", f"{self.here}/30", "dev", self._our)
            _ip("link", "set", self._our, "up")
            self._inside("addr", "add", f"{self.there}/30", "dev", self._their)
            self._inside("link", "set", self._their, "up")
            self._inside("link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for words in (("link", "del", self._our), ("netns", "del", self.name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def cut(self) -> None:
        _ip("neigh", "replace", self.there, "lladdr", NOBODY, "dev", self._our, "nud", "permanent")
        self._inside("neigh", "replace", self.here, "lladdr", NOBODY, "dev", self._their, "nud", "permanent")

    def mend(self) -> None:
        _ip("neigh", "del", self.there, "dev", self._our)
        self._inside("neigh", "del", self.here, "dev", self._their)

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)


def _ip(*words: str) -> None:
    ended = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"ip {' '.join(words)}: {ended.stderr.strip()}")


def why_not() -> str:
    """Why there can be no `Machine` here; empty when there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2) to make a network namespace with"
    try:
        with Machine():
            return ""
    except OSError as error:
        return f"network namespaces are refused: {error}"


def move() -> None:
    """Move this process, and those that it will start, into the namespace that its environment names, if it names one.

    To be called while it has one thread.
    """
    if name := os.environ.get(NAMESPACE):
        namespace = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {name}")
        os.close(namespace)
