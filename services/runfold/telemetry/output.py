"""What user code prints, wherever it prints it: each line becomes a log record, so that our output stays one JSON object a line.

`print` and ``sys.stderr`` know which call of a tool they are in, and so does the record. What goes past Python (``os.write``, C
code, programs that a tool starts) arrives by a pipe in place of the file descriptors 1 and 2, and is nobody's. Our own log has a
file descriptor and handlers of its own, so that nothing a tool does to ``logging`` silences it.
"""

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from runfold.core.printable import printable

LONGEST = 2000  # characters of a line that are kept
PARTS = 200  # unfinished lines that are kept apart, of as many calls
OURS = "runfold"  # the logger above all of ours

log = logging.getLogger(f"{OURS}.output")

Facts = Callable[[], Mapping[str, Any]]  # fields of the record, of whoever prints


class Lines:
    """Cuts what is written into lines, and each line to `LONGEST`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._part, self._left_out = "", 0

    def write(self, text: str) -> None:
        *ended, rest = text.split("\n")
        for line in ended:
            self._add(line)
            self.flush()
        self._add(rest)

    def _add(self, text: str) -> None:
        room = LONGEST - len(self._part)
        self._part += text[:room]
        self._left_out += len(text[room:])

    def flush(self) -> None:
        """End the line that is begun, if any."""
        part, left_out, self._part, self._left_out = self._part, self._left_out, "", 0
        if part.strip():
            self._say(f"{part}… ({left_out} characters more)" if left_out else part)


class Printed(io.TextIOWrapper):
    """In place of ``sys.stdout`` and ``sys.stderr``. Lines of calls that print at the same time are kept apart.

    What goes around `write`, by ``buffer`` or ``fileno()``, comes out of ``descriptor``, as of any such stream.
    """

    def __init__(self, name: str, descriptor: int, facts: Facts) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        self._name, self._facts = name, facts
        self._parts: dict[str, Lines] = {}
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        facts = self._facts()
        with self._lock:
            self._of(facts).write(str(text))
        return len(text)

    def flush(self) -> None:
        facts = self._facts()
        with self._lock:
            self._of(facts).flush()

    def _of(self, facts: Mapping[str, Any]) -> Lines:
        key = repr(facts)
        if key not in self._parts:
            while len(self._parts) >= PARTS:
                self._parts.pop(next(iter(self._parts))).flush()
            self._parts[key] = Lines(lambda line: say(self._name, line, facts))
        return self._parts[key]


def say(name: str, line: str, facts: Mapping[str, Any]) -> None:
    """One line of output as a record."""
    log.info("%s", printable(line), extra={"runfold.output": name, **facts})


def capture(handler: "logging.StreamHandler[IO[str]]", facts: Facts) -> None:
    """From now on, for the whole process. ``handler`` is the one that `runfold.telemetry.logs.speak` has installed.

    On a terminal, where people read both, leave it be."""
    ours = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    handler.setStream(ours)
    own = logging.StreamHandler(ours)
    own.setFormatter(handler.formatter)
    logger = logging.getLogger(OURS)
    logger.addHandler(own)
    logger.setLevel(logging.getLogger().level)
    logger.propagate = False
    sys.stdout, sys.stderr = Printed("stdout", 1, facts), Printed("stderr", 2, facts)
    _pipe("stdout", 1)
    _pipe("stderr", 2)


def _pipe(name: str, descriptor: int) -> None:
    """Read what is written to a file descriptor, in a thread, for as long as the process lives."""
    reading, writing = os.pipe()
    os.dup2(writing, descriptor)
    os.close(writing)
    threading.Thread(target=_read, args=(name, reading), name=f"runfold-{name}", daemon=True).start()


def _read(name: str, descriptor: int) -> None:
    lines = Lines(lambda line: say(name, line, {}))
    while data := os.read(descriptor, 65_536):
        lines.write(data.decode("utf-8", "replace"))
        if not data.endswith(b"\n") and len(data) < 65_536:
            lines.flush()  # nobody may ever end this line
