"""How long the API waits for what stands behind it.

What takes too long is left to itself, not cancelled: cancelling a statement of a database that has fallen silent takes as long as
the database is silent, and the client would wait with it.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from runfold.core.errors import LogUnavailable, RunfoldError

READ_SECONDS = 5.0  # for one answer of tables or log
SEND_SECONDS = 12.0  # for the log to take a command, should it break its own promise: it rides over a broker's restart

T = TypeVar("T")

_left: set[asyncio.Future[Any]] = set()  # the loop itself does not keep them


def begun(answer: Awaitable[T]) -> asyncio.Future[T]:
    """``answer`` on its way, to its end, whether anybody waits for it or not."""
    asking = asyncio.ensure_future(answer)
    _left.add(asking)
    asking.add_done_callback(_ended)
    return asking


async def in_time(answer: Awaitable[T], error: type[RunfoldError]) -> T:
    """What is read, or ``error`` when it takes longer than `READ_SECONDS`."""
    return await _within(READ_SECONDS, answer, error)


async def taken(answer: Awaitable[T]) -> T:
    """What is answered to a command. Raises `LogUnavailable` when it takes longer than `SEND_SECONDS`: it may be sent yet."""
    return await _within(SEND_SECONDS, answer, LogUnavailable)


async def _within(seconds: float, answer: Awaitable[T], error: type[RunfoldError]) -> T:
    asking = begun(answer)
    await asyncio.wait({asking}, timeout=seconds)
    if not asking.done():
        raise error(f"no answer within {seconds:g} s")
    return asking.result()


def _ended(asking: asyncio.Future[Any]) -> None:
    _left.discard(asking)
    if not asking.cancelled():
        asking.exception()  # nobody may have waited for it
