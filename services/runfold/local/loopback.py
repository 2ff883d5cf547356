"""Ports on this machine: chosen free once, the same ones at the next start; and the URL of what listens at one."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local.places import keeping

HOST = "127.0.0.1"
# Below the range that systems give to outgoing connections. Inside it a client that keeps trying a port whose server is down can
# be given that very port, connect to itself and so take it from the server.
RANGE = range(20_000, 32_000)


def url(host: str, port: int) -> str:
    """Of what listens there; an IPv6 address is put in brackets.

    >>> url("::1", 8080)
    'http://[::1]:8080'
    """
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((HOST, port)) == 0


def choose(remembered: Path, wanted: Sequence[int]) -> list[int]:
    """One port per entry of `wanted`: that one; for 0 the one of the last start, kept in the file `remembered`, or a free one.

    StackError if a port that is not 0 is taken, or `remembered` cannot be kept; a remembered one that is taken is replaced."""
    with keeping(remembered.parent):
        before = [int(port) for port in remembered.read_text().split()] if remembered.exists() else [0] * len(wanted)
        chosen: list[int] = []
        for port, last in zip(wanted, before, strict=True):
            chosen.append(_given(port) if port else _free(last, chosen))
        remembered.write_text(" ".join(map(str, chosen)))
    return chosen


def _given(port: int) -> int:
    if not _bindable(port):
        raise StackError(f"expected port {port} to be free, but another process has it: stop that, or give another port")
    return port


def _free(last: int, taken: Sequence[int]) -> int:
    candidates = [last] * bool(last) + random.SystemRandom().sample(RANGE, len(RANGE))
    for port in candidates:
        if port not in taken and _bindable(port):
            return port
    raise StackError(f"found no free port from {RANGE.start} to {RANGE.stop - 1}: give one")


def _bindable(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: connections just closed do not count
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return not listening(port)
