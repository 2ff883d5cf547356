"""What every appender does around its transaction: one at a time, in bounded time, and dead after the first error."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from runfold.core.errors import Expelled, LogUnavailable
from runfold.core.events import OwnerEvent
from runfold.log.codec import Codec, record_type
from runfold.log.echo import Lane
from runfold.log.wire import encoded, generation
from runfold.ports import Position

APPEND_SECONDS = 10.0  # the longest that an append takes


class Outgoing(NamedTuple):
    """One owner record, ready to be sent."""

    event: OwnerEvent
    key: bytes
    value: bytes
    type_header: bytes
    lane_header: bytes


class BoundedAppender(ABC):
    """A `runfold.ports.Appender`, less the transaction itself."""

    def __init__(self, partition: int, lane: Lane, codec: Codec) -> None:
        self._partition, self._lane, self._codec = partition, lane, codec
        self._alive = True
        self._pending: asyncio.Timeout | None = None

    async def append(self, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        self._check()
        pairs = encoded(events, self._codec)
        try:
            async with asyncio.timeout(APPEND_SECONDS) as self._pending:
                await self._send(events, pairs, position, proof)
        except TimeoutError:
            self._die()
            raise LogUnavailable(f"partition {self._partition}: no answer in time (or dropped); fence again") from None
        except BaseException:
            self._die()
            raise
        finally:
            self._pending = None

    def drop(self) -> None:
        self._die()
        if self._pending is not None and not self._pending.expired():
            self._pending.reschedule(0)  # the append that waits ends now

    @abstractmethod
    async def _commit(self, records: Sequence[Outgoing], position: Position, proof: bytes) -> None:
        """One transaction: the records, and the group's offset under ``proof``."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give up what the transactions needed. Idempotent, does not block."""

    async def _send(
        self, events: Sequence[OwnerEvent], pairs: Sequence[tuple[bytes, bytes]], position: Position, proof: bytes
    ) -> None:
        if generation(proof) < 0:  # a classic group takes it unchecked
            raise Expelled(f"expected the proof of a joined member, got {proof!r}; nothing was sent", proof)
        headers = self._lane.hold(events)
        records = [Outgoing(e, k, v, record_type(e), h) for e, (k, v), h in zip(events, pairs, headers, strict=True)]
        await self._commit(records, position, proof)

    def _check(self) -> None:
        if self._pending is not None:
            raise RuntimeError(f"partition {self._partition}: appends must not overlap; await the one before")
        if not self._alive:
            raise LogUnavailable(f"partition {self._partition}: this appender failed or was dropped; fence again")

    def _die(self) -> None:
        self._alive = False
        self._let_go()
