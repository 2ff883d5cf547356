"""A worker process's `runfold.ports.Log` over its link: the memory log, with readers that lag and fences that nobody hears of."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from runfold.core.errors import LogUnavailable
from runfold.core.events import Delivery, Unreadable
from runfold.log.memory import MemoryLog
from runfold.ports import Appender, Position, Reading
from runfold.simulation.broker import Link, die
from runfold.simulation.chance import Chance


class SimulatedLog:
    """A `runfold.ports.Log`."""

    def __init__(self, link: Link, chance: Chance) -> None:
        self.link, self._chance = link, chance
        self._inner = MemoryLog(link)

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    async def fence(self, partition: int) -> Appender:
        appender = await self._inner.fence(partition)
        if self._chance.happens(self.link.rates.crash_in_fence):
            await die()
        if self._chance.happens(self.link.rates.unheard_fence):
            raise LogUnavailable("the answer to a fence was lost")
        return appender

    async def position(self, partition: int) -> Position:
        return await self._inner.position(partition)

    async def read(self, partition: int, offset: int) -> Reading:
        return LaggingReading(await self._inner.read(partition, offset), self)

    async def dead_letter(self, unreadable: Unreadable) -> None:
        await self._inner.dead_letter(unreadable)

    async def close(self) -> None:
        await self._inner.close()

    async def lag(self) -> None:
        """Wait as long as a reader lags behind now."""
        if self._chance.happens(self.link.rates.late_delivery):
            await asyncio.sleep(self._chance.seconds(0.2, 4))

    def share(self, records: int) -> int:
        """How many of them a reader gets at once."""
        return records if records == 1 or self._chance.happens(0.5) else self._chance.randint(1, records)


class LaggingReading:
    """A `runfold.ports.Reading` that comes late and in other batches than were written."""

    def __init__(self, inner: Reading, log: SimulatedLog) -> None:
        self._inner, self._log = inner, log
        self._batches = aiter(inner)
        self._rest: Sequence[Delivery] = ()
        self._closed = False

    @property
    def taken(self) -> int:
        return self._inner.taken

    def __aiter__(self) -> AsyncIterator[Sequence[Delivery]]:
        return self

    async def __anext__(self) -> Sequence[Delivery]:
        rest = self._rest or await anext(self._batches)
        await self._log.lag()
        if self._closed:
            raise StopAsyncIteration
        share = self._log.share(len(rest))
        self._rest = rest[share:]
        return rest[:share]

    async def close(self) -> None:
        self._closed = True
        await self._inner.close()
