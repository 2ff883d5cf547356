"""Following the log file of a child, to show it to people."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

POLL_SECONDS = 0.05


class Follower:
    """Inside the block each whole line of ``file`` is given to ``show``, in a thread."""

    def __init__(self, file: Path, show: Callable[[str], object]) -> None:
        self._file, self._show, self._stop = file, show, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        with self._file.open(encoding="utf-8", errors="replace") as lines:
            rest, last = "", False
            while not last:
                last = self._stop.wait(POLL_SECONDS)  # once more after the stop: what was written until then
                *whole, rest = (rest + lines.read()).split("\n")
                for line in whole:
                    self._show(line)
