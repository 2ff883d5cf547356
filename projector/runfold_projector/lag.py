"""How far the tables are behind the log, judged as a broker judges its replicas: without comparing clocks.

A look notes where the log ended and when. Once everything before that end is in the tables, they are known to show the log as it
was at that time; then the next look is noted. So a busy log, which is never read to its end, is not taken for a lag. Nor is a log
that has fallen silent taken for one that is still: a look is as old as the log's last answer.
"""

import time
from collections.abc import Mapping

Offsets = Mapping[int, int]  # by partition


class Lag:
    """`seconds` and `records` may be read from any thread."""

    def __init__(self) -> None:
        self._level_at = self._noted_at = time.monotonic()
        self._noted: Offsets = {}
        self.records = 0  # offsets known to be in the log and not in the tables

    @property
    def seconds(self) -> float:
        """The tables show the log as it was at most so long ago, as far as this process knows; below 1 s while nothing comes."""
        return time.monotonic() - self._level_at

    def look(self, ends: Offsets, reached: Offsets, at: float) -> None:
        """``ends``: where the log ended at ``at``, of CLOCK_MONOTONIC. ``reached``: all before these offsets is in the tables."""
        self.records = _missing(ends, reached)
        if not _missing(self._noted, reached):
            self._level_at, self._noted_at, self._noted = self._noted_at, at, ends
        if not self.records:
            self._level_at = at

    def none(self) -> None:
        """Whatever there is, it is another process's."""
        self.look({}, {}, time.monotonic())


def _missing(ends: Offsets, reached: Offsets) -> int:
    return sum(max(0, end - reached.get(partition, 0)) for partition, end in ends.items())
