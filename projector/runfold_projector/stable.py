"""How long the log has held something that nobody can read: its last stable offset does not move while its end is beyond.

Behind it is a transaction that nobody ends. All that is written to that partition waits with it, for every reader: until the next
owner fences the last one, or the broker's transaction timeout.
"""

from collections.abc import Mapping

Offsets = Mapping[int, int]  # by partition


class StableOffsets:
    """``age`` is in seconds, of the partition for which it is longest; it may be read from any thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, float]] = {}  # by partition: the offset that does not move, and since when
        self.age = 0.0

    def look(self, ends: Offsets, reached: Offsets, now: float) -> None:
        """``ends``: where the log ends, uncommitted records counted. ``reached``: everything readable before these was read."""
        for partition, end in ends.items():
            at = reached.get(partition, 0)
            if at >= end:
                self._waiting.pop(partition, None)
            elif partition not in self._waiting or self._waiting[partition][0] != at:
                self._waiting[partition] = at, now
        self.age = max((now - since for _, since in self._waiting.values()), default=0.0)

    def none(self) -> None:
        """Another process reads."""
        self._waiting.clear()
        self.age = 0.0
