"""A machine: a keeper process, and the worker process that it hires, watches and replaces.

The worker is the real one. The keeper is a model of `runfold.worker.lease.Keeper`, which lives on pipes, forks and blocking calls
that no simulation can hold still; it says and hears the same.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from runfold.ports import Grant
from runfold.simulation.loop import Process
from runfold.simulation.seat import Seat
from runfold.worker.worker import Worker

if TYPE_CHECKING:
    from runfold.simulation.world import World

POLL_SECONDS = 0.3
REPEAT_SECONDS = 0.9  # an unchanged grant is said again
FROZEN_SECONDS = 1.0  # between two looks at the worker: we were not running
SILENCE_SECONDS = 5.0  # a worker that has not answered for so long is replaced
FORK_SECONDS = 0.2
PIPE_SECONDS = 0.0005
GRACE_SECONDS = 2.0  # beyond the worker's own time to drain
DEATHS, WINDOW, BACKOFF_SECONDS = 3, 60.0, 5.0


class WorkerProcess:
    """A worker process, from its fork on; what the keeper says before it listens waits in the pipe."""

    def __init__(self, world: "World", name: str, answer: Callable[[frozenset[int]], object]) -> None:
        self.process = world.process(name)
        self.link = world.broker.link()
        self.worker: Worker | None = None
        self._world, self._answer = world, answer
        self._pipe: list[Grant] = []
        self.process.post(FORK_SECONDS, self._start)

    def _start(self) -> None:
        resources = self._world.resources(self.process, self.link)
        self.worker = Worker(resources, self._world.plan.drain, self._failed)
        for grant in self._pipe:
            self._follow(grant)

    def _failed(self, error: BaseException) -> None:
        self._world.complain(f"{self.process.name} ended with an exception that nobody expected: {error!r}")

    def tell(self, grant: Grant) -> None:
        """From the keeper, down the pipe."""
        self.process.post(PIPE_SECONDS, self._hear, grant)

    def _hear(self, grant: Grant) -> None:
        if self.worker is None:
            self._pipe.append(grant)
        else:
            self._follow(grant)

    def _follow(self, grant: Grant) -> None:
        assert self.worker is not None
        self._world.referee.granted(self.process.name, grant.at)
        self.worker.granted(grant)
        self._answer(self.worker.held)

    def hang_up(self) -> None:
        """The keeper is gone: the worker ends when it notices."""
        self.process.post(PIPE_SECONDS, self.process.kill)


class Machine:
    """Up from `boot` until `kill`, or until it has left for a `restart`."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.keeper: Process = world.process(name)
        self.worker: WorkerProcess | None = None
        self.seat: Seat | None = None
        self._world = world
        self._boots = 0
        self._stopping, self._pause = False, 0.0
        self.keeper.kill()

    @property
    def up(self) -> bool:
        return not self.keeper.dead

    def boot(self) -> None:
        if self.up:
            return
        self._boots += 1
        self._stopping = False
        self._hires = 0
        self.keeper = self._world.process(f"{self.name}{self._boots}")
        self.keeper.spawn(self._keep())

    def restart(self, pause: float) -> None:
        """SIGTERM; and ``pause`` seconds after it has left it is started again."""
        self._stopping, self._pause = True, pause

    def kill(self) -> None:
        """The keeper dies, and its worker as soon as it runs."""
        self.keeper.kill()
        if self.worker is not None:
            self.worker.hang_up()

    # ---- the keeper

    async def _keep(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._leaving: frozenset[int] = frozenset()
        self._hire()
        while not self._stopping:
            self.seat = Seat(self._world.broker, self._revoked)
            while not (self._stopping or self._crash_loop()):
                await self.seat.poll()
                self._tend()
                await asyncio.sleep(POLL_SECONDS)
            await self.seat.leave()
            if not self._stopping:
                self._deaths.clear()
                await asyncio.sleep(BACKOFF_SECONDS)
        self._world.note(f"{self.keeper.name} has left")
        self._world.later(self._pause, self.boot)
        self.kill()

    def _hire(self) -> None:
        self._hires += 1
        self._held: frozenset[int] = frozenset()
        self._heard = self._tended = self._now()
        self._said, self._said_at = Grant(), -1.0
        number = self._hires
        name = f"{self.keeper.name}.{number}"
        self.worker = WorkerProcess(self._world, name, lambda held: self.keeper.post(PIPE_SECONDS, self._hear, number, held))
        self.worker.link.machine = self.keeper, self.worker.process

    def _hear(self, number: int, held: frozenset[int]) -> None:
        if number == self._hires:
            self._held, self._heard = held, self._now()

    def _tend(self) -> None:
        now = self._now()
        if (gap := now - self._tended) > FROZEN_SECONDS:
            self._heard += gap
        self._tended = now
        assert self.worker is not None
        if self.worker.process.dead:
            self._replace("died")
        elif now > self._heard + SILENCE_SECONDS:
            self._replace("fell silent")
        self._say()

    def _say(self) -> None:
        assert self.seat is not None
        assert self.worker is not None
        now = self._now()
        grant = Grant(self.seat.owned - self._leaving, self._leaving, self.seat.proof, now)
        news = (grant.partitions, grant.leaving, grant.proof) != (self._said.partitions, self._said.leaving, self._said.proof)
        if news or now > self._said_at + REPEAT_SECONDS:
            self.worker.tell(grant)
            self._said, self._said_at = grant, now

    def _replace(self, what: str) -> None:
        assert self.worker is not None
        self.worker.process.kill()
        self._world.note(f"{self.worker.process.name} {what}")
        self._deaths.append(self._now())
        self._hire()

    async def _revoked(self, partitions: frozenset[int]) -> None:
        assert self.seat is not None
        self._leaving = partitions
        deadline = self._now() + self._world.plan.drain + GRACE_SECONDS
        self._tend()
        while self._held & partitions:
            if self._now() > deadline:
                self._replace("was killed, it did not let go")
                break
            await asyncio.sleep(POLL_SECONDS)
            self.seat.beat()
            self._tend()
        self._leaving = frozenset()

    def _crash_loop(self) -> bool:
        return len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < WINDOW
