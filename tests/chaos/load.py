"""Runs that are always there: one that ends is followed by the next."""

import asyncio
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from uuid import UUID

from runfold.core.errors import LogUnavailable
from runfold.core.events import RunRequested
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
    """``ended`` are runs that have ended, its own and others; `top_up` after every change."""

    def __init__(self, plan: Plan, commands: Commands, draw: Random, ended: Set[str]) -> None:
        self.plan, self._commands, self._draw, self._ended = plan, commands, draw, ended
        self.posted: set[str] = set()  # acknowledged by the log: none of them may be lost
        self._asking: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.flowing = True

    def top_up(self) -> None:
        if not self.flowing:
            return
        missing = self.plan.runs - len(self.posted - self._ended) - len(self._asking)
        for _ in range(missing):
            task = asyncio.create_task(self._post(str(UUID(int=self._draw.getrandbits(128), version=4))))
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
