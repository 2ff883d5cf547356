"""Whether a worker process does its work: looked at on its loop, judged from any thread.

Nothing is taken from the process being up. A loop that is blocked looks at nothing, and the age of its last look says so; a
partition is judged by its marker that was read back and by the offsets that were applied.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from runfold.worker.partition import Partition
from runfold.worker.standstill import Standstill
from runfold.worker.worker import Worker

LOOK_SECONDS = 0.25
LOOP_SECONDS = 2.0  # without a look: the loop is blocked. The keeper replaces a worker that is silent for 5 s
READER_SECONDS = 5.0  # without a sign of life of the thread that reads: it decodes too, and may wait for a schema registry
BROKER_SECONDS = 5.0  # without an answer of the brokers: of a log that is silent nobody can say whether it grows
STALL_SECONDS = 5.0  # with something to apply, and nothing applied


class Blocked(StrEnum):
    """Why a partition does not move, or not all of it."""

    LOOP = "loop"  # the process's loop is blocked
    KEEPER_SILENT = "keeper_silent"  # no step may start before the keeper is heard again
    BROKER_SILENT = "broker_silent"  # no word from the brokers: nothing can be read or written, or known to be there
    TAKING_OVER = "taking_over"  # it was granted, and our first marker is not read back
    RESETTING = "resetting"  # the append path broke, and the marker that mends it is not read back
    STANDSTILL = "standstill"  # there is something to apply, and nothing has been applied for a while
    DEAD_LETTERS = "dead_letters"  # steps go on; its position waits until an unreadable record is copied
    PARKED = "parked"  # steps go on; its low watermark waits for a newer build to go on with a run


STEPS_GO_ON = frozenset({Blocked.DEAD_LETTERS, Blocked.PARKED})  # a process is ready all the same


@dataclass(frozen=True, slots=True)
class Look:
    """What the loop saw. Times are seconds of CLOCK_MONOTONIC."""

    at: float
    granted_at: float = 0.0  # the keeper's last word
    joined: bool = False
    leaving: bool = False
    blocked: Mapping[int, frozenset[Blocked]] = field(default_factory=dict)


class Vitals:
    """`look` belongs to the loop, everything else may be called from any thread."""

    def __init__(self, worker: Worker, now: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._now = worker, now
        self._standstills: dict[int, Standstill] = {}
        self._seen = Look(now())

    # ---- on the loop

    async def watch(self) -> None:
        """Look every now and then, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """See how the worker is: `troubles` and `blocked` tell of the last look."""
        now, worker, ends = self._now(), self._worker, self._worker.resources.ends()
        partitions = dict(worker.partitions)
        self._standstills = {number: self._standstills.get(number) or Standstill() for number in partitions}
        for number, partition in partitions.items():
            still = self._standstills[number]
            still.look(partition.shard.next_offset, ends.get(number, -1), not partition.lane.idle, now)
        self._seen = Look(
            at=now,
            granted_at=worker.grant.at,
            joined=bool(worker.grant.proof),
            leaving=bool(worker.grant.leaving) and not worker.grant.partitions,
            blocked={number: frozenset(self._blocked(partition, now)) for number, partition in partitions.items()},
        )

    def _blocked(self, partition: Partition, now: float) -> Iterator[Blocked]:
        if self._silent(self._worker.grant.at, now):
            yield Blocked.KEEPER_SILENT
        if now - self._worker.resources.heard_at() > BROKER_SECONDS:
            yield Blocked.BROKER_SILENT
        if not (partition.owned or partition.draining):
            yield Blocked.RESETTING if partition.was_owned else Blocked.TAKING_OVER
        since = self._standstills[partition.number].since
        if since is not None and now - since > STALL_SECONDS:
            yield Blocked.STANDSTILL
        if partition.burying:
            yield Blocked.DEAD_LETTERS
        if partition.gaps.parked:
            yield Blocked.PARKED

    def _silent(self, granted_at: float, now: float) -> bool:
        return now - granted_at > self._worker.resources.silence_seconds

    # ---- on any thread

    @property
    def loop_age(self) -> float:
        """Seconds since the loop last had a look."""
        return self._now() - self._seen.at

    def troubles(self) -> dict[str, str]:
        """Why the process is not ready, by what is troubled. Empty: it does its work, or stands by to be given some."""
        seen, found, passed_over = self._seen, dict[str, str](), STEPS_GO_ON
        if stuck := self.loop_age > LOOP_SECONDS:
            found["loop"] = f"blocked for {self.loop_age:.1f} s"
            passed_over |= {Blocked.KEEPER_SILENT}  # the loop hears the keeper: its silence is our own deafness
        if (age := self._now() - self._worker.resources.read_at()) > READER_SECONDS:
            found["reader"] = f"blocked for {age:.1f} s"
        if (age := self._now() - self._worker.resources.heard_at()) > BROKER_SECONDS:
            found["broker"] = f"silent for {age:.1f} s"
        if self._silent(seen.granted_at, seen.at):
            if not stuck:
                found["keeper"] = "silent"
        elif not seen.joined:
            found["group"] = "not joined"
        elif seen.leaving:
            found["group"] = "being left"
        for number, reasons in seen.blocked.items():
            if why := reasons - passed_over:
                found[f"partition {number}"] = ", ".join(sorted(why))
        return found

    def blocked(self, reason: Blocked) -> int:
        """How many partitions are blocked for this reason."""
        seen = self._seen
        if reason is Blocked.LOOP:
            return len(seen.blocked) if self.loop_age > LOOP_SECONDS else 0
        return sum(reason in reasons for reasons in seen.blocked.values())
