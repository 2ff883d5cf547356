"""How many calls of one kind may run at the same time in this worker."""

import asyncio
from collections.abc import Callable, Hashable


class Slots:
    """A counter with a queue. Whoever finds no slot is poked when one is free, first come first served, and must ask again."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: dict[Hashable, Callable[[], None]] = {}

    def take(self, who: Hashable, poke: Callable[[], None]) -> bool:
        """Take a slot now, or be poked when one may be free."""
        if self._free > 0:
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
            who = next(iter(self._waiting))
            self._waiting.pop(who)()
