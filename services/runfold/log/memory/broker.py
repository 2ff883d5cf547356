"""The memory broker: partitions, a group, a clock, and the ways in which it can go wrong."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from runfold.core.errors import Expelled, LogUnavailable
from runfold.core.events import OwnerEvent, Unreadable
from runfold.log.codec import Codec
from runfold.log.memory.group import Group
from runfold.log.memory.partition import Partition

Hook = Callable[[int, Sequence[OwnerEvent]], Awaitable[None]]


async def _nothing(partition: int, events: Sequence[OwnerEvent]) -> None:
    pass


def _now() -> int:
    return time.time_ns() // 1_000_000


class MemoryBroker:
    """One topic of ``partitions`` partitions; ``clock`` gives broker milliseconds.

    To make it fail, set:

    - ``before_commit``, ``after_commit``: awaited in each append with (partition, events), when the records are in the log but
      not committed, and when they are. One that raises `LogUnavailable` leaves the appender without knowledge; one that
      never returns is a commit that hangs; one that raises something else is a process that died there.
    - ``latency``: seconds that each request takes.
    - ``marker_delay``: seconds from the acknowledgement of a commit until readers see it.
    """

    def __init__(self, partitions: int = 4, clock: Callable[[], int] = _now, codec: Codec | None = None) -> None:
        self.codec = codec or Codec()
        self.partitions = [Partition(number) for number in range(partitions)]
        self.group = Group(partitions)
        self.clock = clock
        self.dead_letters: list[Unreadable] = []
        self.live: list[tuple[str, bytes]] = []  # (run id, value): the side topic, see `live`
        self.before_commit: Hook = _nothing
        self.after_commit: Hook = _nothing
        self.latency = 0.0
        self.marker_delay = 0.0
        self.up = True

    async def request(self) -> None:
        """One round trip of any client. Raises `LogUnavailable` while the broker is stopped."""
        await asyncio.sleep(self.latency)
        if not self.up:
            raise LogUnavailable("the memory broker was stopped: call start()")

    def stop(self) -> None:
        """Answer nothing and deliver nothing until `start`. Nothing is lost."""
        self.up = False

    def start(self) -> None:
        self.up = True
        for partition in self.partitions:
            partition.wake()

    def put(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        type_header: bytes | None = None,
        lane: bytes | None = None,
    ) -> int:
        """Store any record whatever, as any client of the topic may; its offset. With ``lane``, in an owner's name."""
        return self.partitions[partition].put(key, value, type_header, self.clock(), lane)

    def check(self, proof: bytes) -> None:
        """Raises `Expelled` unless ``proof`` is that of a member of the current generation."""
        if not self.group.knows(proof):
            raise Expelled(f"the group is at generation {self.group.generation} and refuses {proof!r}", proof)


