"""Waiting, without a sleep, until something is so."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

LOOK_AGAIN = 0.2  # seconds: a condition may also rest on what nobody tells, and then it must not be waited for in vain


class Changes:
    """``tell`` wakes whoever waits. On one loop."""

    def __init__(self) -> None:
        self._change = asyncio.Event()

    def tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def until(self, true: Callable[[], object], seconds: float) -> None:
        """Wait until ``true()``, asked again at each change and now and then between. `TimeoutError` after ``seconds``."""
        async with asyncio.timeout(seconds):
            while not true():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN):
                        await self._change.wait()
