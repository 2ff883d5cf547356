"""The worlds in which the contract of the log is tested: memory and Kafka, behind one face.

A test gets a `World` and does with it what workers, keepers, clients and accidents do to a log. What it asserts must hold in
every world.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Protocol
from uuid import UUID, uuid5

from runfold.core.events import CommandRejected, Delivery, Event, LeaseAcquired, OwnerEvent, Record, Rejection, RunCancelRequested
from runfold.log.partitioner import partition_of
from runfold.ports import Commands, Live, LiveReader, Log, Membership, Position, Reading, Tail
from tests.changes import Changes

PARTITIONS = 4
PATIENCE = 20.0  # seconds that a test waits for what must come: long, because the machine may be busy
_NAMES = UUID("6f1c0a52-0000-4000-8000-000000000000")


class World(Protocol):
    """A topic of `PARTITIONS` partitions and a group of its own; what it opens it closes at the end of the test."""

    async def log(self) -> Log: ...

    async def seat(self) -> "Seat":
        """One more member of the group, polled for as long as the test runs."""
        ...

    async def commands(self) -> Commands: ...

    async def tail(self) -> Tail: ...

    async def live(self) -> Live: ...

    async def live_reader(self, run_id: str) -> LiveReader: ...

    async def put(self, partition: int, key: bytes | None, value: bytes | None, type_header: bytes | None = None) -> None:
        """Write a record as any client may: not by the rules."""
        ...

    async def hang(self, partition: int, events: Sequence[OwnerEvent], proof: bytes = b"") -> None:
        """Be an owner of ``partition`` that is killed when its records are in the log and not committed.

        With a ``proof``, when the group has its offset as well."""
        ...

    async def dead_letters(self) -> list[tuple[int, int, bytes | None]]:
        """(partition, offset, value) of what is in the dead-letter topic."""
        ...


class Seat:
    """A membership that is being polled; ``owned`` and ``proof`` are those after its last poll.

    ``letting_go`` runs inside the revocation, on the thread of the membership.
    """

    def __init__(self, membership: Membership, pool: ThreadPoolExecutor | None) -> None:
        self.membership, self._pool = membership, pool
        self.owned: frozenset[int] = frozenset()
        self.proof = b""
        self.letting_go: Callable[[frozenset[int]], None] = lambda partitions: None
        self._changes = Changes()
        self._pump: asyncio.Task[None] | None = None

    async def join(self) -> "Seat":
        await self._call(lambda: self.membership.join(lambda partitions: self.letting_go(partitions)))
        self._pump = asyncio.create_task(self._poll())
        return self

    async def until(self, condition: Callable[[], bool]) -> None:
        await self._changes.until(condition, PATIENCE)

    async def owning(self, count: int) -> bytes:
        """Wait until it is joined and owns ``count`` partitions; its proof."""
        await self.until(lambda: len(self.owned) == count and self.proof != b"")
        return self.proof

    async def leave(self) -> None:
        if self._pump is not None:
            pump, self._pump = self._pump, None
            pump.cancel()
            await asyncio.wait([pump])
            await self._call(self.membership.leave)

    async def close(self) -> None:
        await self.leave()
        if self._pool is not None:
            self._pool.shutdown()

    async def _poll(self) -> None:
        while True:
            await self._call(lambda: self.membership.poll(0.02))
            self.owned, self.proof = self.membership.owned, self.membership.proof
            self._changes.tell()
            if self._pool is None:
                await asyncio.sleep(0.001)

    async def _call(self, function: Callable[[], None]) -> None:
        if self._pool is None:
            function()
        else:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, function))


# ---- the words of the tests

_numbers = count(1)


def run_on(partition: int) -> str:
    """A new run id that belongs to ``partition``."""
    while True:
        run_id = str(uuid5(_NAMES, str(next(_numbers))))
        if partition_of(run_id.encode(), PARTITIONS) == partition:
            return run_id


def event(run_id: str, name: str = "c") -> CommandRejected:
    """The smallest owner event; ``name`` tells it from others."""
    return CommandRejected(run_id=run_id, epoch=0, command_id=name, reason=Rejection.RUN_FINISHED)


def events(partition: int, names: Sequence[str]) -> list[OwnerEvent]:
    run_id = run_on(partition)
    return [event(run_id, name) for name in names]


def marker(partition: int, worker: str = "w") -> LeaseAcquired:
    return LeaseAcquired(partition=partition, worker=worker, build="test")


def command(run_id: str, name: str = "c") -> RunCancelRequested:
    return RunCancelRequested(run_id=run_id, command_id=name, requested_by="test")


def names(deliveries: Sequence[Delivery]) -> list[str]:
    """What the records of `event`, `command` and `marker` are called."""
    return [_name(delivery.event) for delivery in deliveries if isinstance(delivery, Record)]


def _name(event: Event) -> str:
    if isinstance(event, CommandRejected | RunCancelRequested):
        return event.command_id
    return event.worker if isinstance(event, LeaseAcquired) else type(event).__name__


async def collect(reading: Reading, until: Callable[[list[Delivery]], bool]) -> list[Delivery]:
    """Read on until ``until`` of everything read here."""
    got: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        async for batch in reading:
            assert batch, "a batch is never empty"
            got += batch
            if until(got):
                break
    return got


async def take(reading: Reading, number: int) -> list[Delivery]:
    got = await collect(reading, lambda got: len(got) >= number)
    assert len(got) == number, got
    return got


async def until_marked(reading: Reading, worker: str) -> list[Delivery]:
    """Read on until the `marker` of ``worker``; what came before it."""
    got = await collect(reading, lambda got: worker in names(got[-1:]))
    return got[:-1]


async def read_to_marker(log: Log, partition: int, proof: bytes) -> list[Delivery]:
    """Take ``partition`` over with a marker of one's own, and read all that is before it."""
    appender, end = await log.fence(partition), f"end {next(_numbers)}"
    await appender.append([marker(partition, end)], Position(), proof)
    reading = await log.read(partition, 0)
    try:
        return await until_marked(reading, end)
    finally:
        await reading.close()
