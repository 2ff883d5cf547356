"""A keeper's seat in the group of a simulated broker: `runfold.log.memory.MemoryMembership` for keepers that may be cut off.

What it adds: letting partitions go takes time, heartbeats go on meanwhile, and one who cannot reach the broker gives its
partitions up when its session must have run out.
"""

import asyncio
from collections.abc import Awaitable, Callable

from runfold.simulation.broker import SESSION_SECONDS, SimulatedBroker

Revoked = Callable[[frozenset[int]], Awaitable[None]]


class Seat:
    """``revoked`` is awaited when partitions are to be let go."""

    def __init__(self, broker: SimulatedBroker, revoked: Revoked) -> None:
        self.owned: frozenset[int] = frozenset()
        self.proof = b""
        self.cut = False
        self.name = broker.group.new_name()
        self._broker, self._group, self._revoked = broker, broker.group, revoked
        self._now = asyncio.get_running_loop().time
        self._reached = self._now()

    def beat(self) -> bool:
        """The heartbeat. Whether the broker was reached.

        It brings a fresh proof, for a real group waits with its next generation until all have let go what they must.
        """
        if self.cut or not self._broker.up:
            return False
        if self._group.has(self.name):
            self._broker.beat(self.name)
            self.proof = self._group.proof(self.name)
        self._reached = self._now()
        return True

    async def poll(self) -> None:
        """Let the group speak."""
        if not self.beat():
            if self._now() - self._reached > SESSION_SECONDS:
                self._forget()
            return
        if not self._group.has(self.name):
            self._forget()
            self._group.join(self.name)
            self._broker.beat(self.name)
        while self._group.has(self.name) and (gone := self.owned - self._group.target(self.name)):
            await self._let_go(gone)
        if self.beat() and self._group.has(self.name):
            self._release()
            self.owned = self._group.take(self.name)

    async def _let_go(self, gone: frozenset[int]) -> None:
        self.owned -= gone
        await self._revoked(gone)

    def _release(self) -> None:
        """Tell the group what is let go of all that it takes for ours."""
        kept = self.owned | self._group.target(self.name)
        gone = {partition for partition, holder in self._group.held.items() if holder == self.name} - kept
        if gone:
            self._group.release(frozenset(gone))

    async def leave(self) -> None:
        """Give everything back and leave at once, if the broker can be told; else the session runs out."""
        gone, self.owned = self.owned, frozenset()
        if gone:
            await self._revoked(gone)
        if self.beat():
            self._group.leave(self.name)

    def _forget(self) -> None:
        self.owned, self.proof = frozenset(), b""
