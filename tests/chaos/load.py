"""Runs that are always there: one that ends is followed by the next, on the partition that has the fewest."""

import asyncio
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from uuid import UUID

from runfold.core.errors import LogUnavailable
from runfold.core.events import RunRequested
from runfold.log.partitioner import partition_of
from runfold.ports import Commands

AT_ONCE = 50  # commands on their way


@dataclass(frozen=True, slots=True)
class Plan:
    """``runs`` at the same time, of ``turns`` turns each; a model call takes ``fastest`` to ``slowest`` seconds."""

    runs: int
    turns: int
    fastest: float
    slowest: float

    @property
    def input(self) -> str:
        return f"turns={self.turns} from={self.fastest} to={self.slowest}"


class Load:
    """``ended`` are runs that have ended, its own and others; `top_up` after every change.

    No partition is ever without a run: on an empty one nothing would be seen to go on.
    """

    def __init__(self, plan: Plan, partitions: int, commands: Commands, draw: Random, ended: Set[str]) -> None:
        self.plan, self._partitions, self._commands, self._draw, self._ended = plan, partitions, commands, draw, ended
        self._open: set[str] = set()  # asked for, and not ended
        self.posted: set[str] = set()  # acknowledged by the log: none of them may be lost
        self._asking: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.flowing = True

    def top_up(self) -> None:
        self._open = {run_id for run_id in self._open if run_id not in self._ended}
        if not self.flowing or len(self._open) >= self.plan.runs:
            return
        counts = Counter(dict.fromkeys(range(self._partitions), 0))
        counts.update(map(self._partition_of, self._open))
        for _ in range(self.plan.runs - len(self._open)):
            emptiest = min(counts, key=counts.__getitem__)
            counts[emptiest] += 1
            self._ask(self._id_on(emptiest))

    def _partition_of(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self._partitions)

    def _id_on(self, partition: int) -> str:
        while True:
            run_id = str(UUID(int=self._draw.getrandbits(128), version=4))
            if self._partition_of(run_id) == partition:
                return run_id

    def _ask(self, run_id: str) -> None:
        self._open.add(run_id)
        task = asyncio.create_task(self._post(run_id))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _post(self, run_id: str) -> None:
        """Asked again until it is acknowledged: the first record of a run id wins."""
        async with self._slots:
            while True:
                with suppress(LogUnavailable):
                    await self._commands.send(RunRequested(run_id=run_id, agent="default", input=self.plan.input))
                    self.posted.add(run_id)
                    return

    async def stop(self) -> None:
        """Post no more; what is on its way arrives."""
        self.flowing = False
        await asyncio.gather(*self._asking)
