"""The memory broker as a simulation needs it: watched at every commit, reached over links that fail, with time running out."""

import asyncio
from collections.abc import Callable, Sequence

from runfold.core.errors import LogUnavailable
from runfold.core.events import OwnerEvent
from runfold.log.codec import Codec
from runfold.log.memory import MemoryBroker
from runfold.log.memory.partition import Partition, State, Transaction
from runfold.ports import Position
from runfold.simulation.chance import Chance, Rates, freeze_seconds
from runfold.simulation.loop import Process, current_process, never

EPOCH_MS = 1_750_000_000_000  # broker time when a simulation begins
SESSION_SECONDS = 6.0
TRANSACTION_SECONDS = 10.0
CHECK_SECONDS = 0.5  # between two looks at sessions and transactions
CODEC = Codec()


class WatchedPartition(Partition):
    """A partition that tells whenever readers may see more of it, and may lose what it acknowledges."""

    def __init__(self, number: int, broker: "SimulatedBroker") -> None:
        super().__init__(number)
        self._broker = broker
        self._begun_at = 0.0

    def wake(self) -> None:
        super().wake()
        self._broker.changed(self)

    def fence(self) -> int:
        self._broker.fenced(self.number)
        return super().fence()

    def begin(self, epoch: int) -> Transaction:
        self._begun_at = self._broker.now()
        return super().begin(epoch)

    def expire(self) -> None:
        """Abort a transaction that has been open for too long, and fence who began it."""
        open_ = self._unfinished is not None and self._unfinished.state is State.OPEN
        if open_ and self._broker.now() - self._begun_at > TRANSACTION_SECONDS:
            self.fence()

    def prepare(self, epoch: int, transaction: Transaction, position: Position) -> None:
        super().prepare(epoch, transaction, position)
        if self.end > transaction.first and self._broker.chance.happens(self._broker.rates.lost_commit):
            self._finish(transaction, State.ABORTED)


class SimulatedBroker(MemoryBroker):
    """``changed`` is told of every partition that readers may see more of, ``fenced`` of every fence."""

    def __init__(self, partitions: int, chance: Chance, rates: Rates, now: Callable[[], float]) -> None:
        super().__init__(0, self._clock, CODEC)
        self.chance, self.rates = chance, rates
        self.changed: Callable[[Partition], None] = lambda partition: None
        self.fenced: Callable[[int], None] = lambda partition: None
        self.links: list[Link] = []
        self.skew = 0  # ms
        self.now = now
        self._beats: dict[str, float] = {}
        self.watched = [WatchedPartition(number, self) for number in range(partitions)]
        self.partitions = list[Partition](self.watched)
        self.group = type(self.group)(partitions)

    def _clock(self) -> int:
        return EPOCH_MS + int(self.now() * 1000) + self.skew

    def link(self) -> "Link":
        """A client's own way to this broker."""
        link = Link(self)
        self.links.append(link)
        return link

    def stop(self) -> None:
        super().stop()
        for link in self.links:
            link.up = False

    def start(self) -> None:
        self._beats = dict.fromkeys(self._beats, self.now())  # it takes everybody for alive
        for link in self.links:
            link.up = not link.cut
        super().start()

    # ---- the group's sessions

    def beat(self, member: str) -> None:
        self._beats[member] = self.now()

    async def expire(self) -> None:
        """For ever: who was not heard of for a session's time is no member any more, what is open for too long is aborted."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self.up:
                self._expire_sessions()
                for partition in self.watched:
                    partition.expire()

    def _expire_sessions(self) -> None:
        for member, heard in list(self._beats.items()):
            if self.now() - heard > SESSION_SECONDS:
                del self._beats[member]
                self.group.leave(member)


class Link(MemoryBroker):
    """The same broker as one client has it: with delays, losses and cuts of its own. ``machine``: the processes beside it."""

    def __init__(self, broker: SimulatedBroker) -> None:
        super().__init__(0, broker.clock, broker.codec)
        self.partitions, self.group, self.dead_letters = broker.partitions, broker.group, broker.dead_letters
        self.up, self.cut = broker.up, False
        self.machine: tuple[Process, ...] = ()
        self._broker = broker
        self._chance = broker.chance
        self.before_commit, self.after_commit = self._before, self._after

    @property
    def rates(self) -> Rates:
        return self._broker.rates

    def set_cut(self, cut: bool) -> None:
        """Cut this client off, or let it through again."""
        self.cut = cut
        self.up = self._broker.up and not cut
        for partition in self.partitions if self.up else ():
            partition.wake()

    async def request(self) -> None:
        chance = self._chance
        await asyncio.sleep(chance.seconds(0.003, 0.1))
        if chance.happens(self.rates.hanging_request):
            await asyncio.sleep(chance.uniform(1, 12))
        if not self.up:
            await asyncio.sleep(chance.choice((0, 0.1, 5)))
            raise LogUnavailable("the broker cannot be reached")
        if chance.happens(self.rates.lost_request):
            raise LogUnavailable("the request was lost")

    def check(self, proof: bytes) -> None:
        super().check(proof)
        if self._chance.happens(self.rates.freeze_in_append):
            seconds = freeze_seconds(self._chance)
            for process in self.machine:
                process.freeze(seconds)

    async def _before(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        """The records are written; nothing is committed."""
        await self._maybe_crash(self.rates.crash_in_append)
        if self._chance.happens(self.rates.refused_append):
            raise LogUnavailable("the append was refused")
        if self._chance.happens(self.rates.hanging_append):
            await never()
        late = self._chance.happens(self.rates.late_marker)
        self.marker_delay = self._chance.seconds(0.5, 8) if late else 0.0

    async def _after(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        """The transaction is committed; its client does not know yet."""
        await self._maybe_crash(self.rates.crash_in_append)
        if self._chance.happens(self.rates.unheard_commit):
            raise LogUnavailable("the acknowledgement was lost")
        if self._chance.happens(self.rates.hanging_commit):
            await never()

    async def _maybe_crash(self, probability: float) -> None:
        if self._chance.happens(probability):
            await die()


async def die() -> None:
    """End the running process here."""
    current_process().kill()
    await never()
