"""What worker processes did, whatever became of them: a file to which each appends one line before it acts.

A line is ``<monotonic seconds> <pid> <kind> <words…>``; the monotonic clock is one for all processes of a machine.

    keeper NAME           a keeper process
    worker NAME           a worker process
    call RUN SEQ ATTEMPT REQUEST    the model is asked; REQUEST is the answer's request_id
    tool KEY              a side effect, by its idempotency key
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

PATH = "CHAOS_LEDGER"  # environment variable of the workers


def write(*words: object) -> None:
    """From a worker process. One write: it is there whole, or not at all."""
    line = " ".join(map(str, (time.monotonic(), os.getpid(), *words))) + "\n"
    file = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class Act:
    at: float
    pid: int
    kind: str
    words: tuple[str, ...]


class Ledger:
    """The test's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def acts(self, *kinds: str, since: float = 0.0) -> list[Act]:
        lines = (line.split() for line in self.path.read_text().splitlines())
        acts = (Act(float(at), int(pid), kind, tuple(words)) for at, pid, kind, *words in lines)
        return [act for act in acts if act.kind in kinds and act.at >= since]

    def pid_of(self, kind: str, name: str) -> int:
        """Of the newest keeper or worker with this name."""
        return [act.pid for act in self.acts(kind) if act.words == (name,)][-1]
