"""How many calls of one kind may run at the same time in this worker."""

import asyncio
from collections.abc import Callable, Hashable


class Slots:
    """A counter with a queue. Whoever finds no slot is poked when one is free, first come first served, and must ask again."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._served: Hashable = None  # who is being poked

    def take(self, who: Hashable, poke: Callable[[], None]) -> bool:
        """Take a slot now, or be poked when one may be free. A free slot is not for those who come after others."""
        if self._free > 0 and (not self._waiting or who == self._served):
            self._free -= 1
            return True
        self._waiting[who] = poke
        return False

    def give(self) -> None:
        """Return a slot."""
        self._free += 1
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        while self._free > 0 and self._waiting:
            self._served = next(iter(self._waiting))
            self._waiting.pop(self._served)()
        self._served = None
