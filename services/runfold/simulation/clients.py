"""Those who write to the log without owning anything: they submit, cancel, repeat themselves, and send what nobody can read."""

import asyncio
from dataclasses import replace
from decimal import Decimal
from uuid import UUID

from runfold.core.errors import LogUnavailable
from runfold.core.events import (
    Command,
    Limits,
    Reason,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunResumeRequested,
    Status,
    Usage,
)
from runfold.log.memory import MemoryCommands
from runfold.log.partitioner import partition_of
from runfold.simulation.broker import CODEC, SimulatedBroker
from runfold.simulation.chance import Chance, Plan
from runfold.simulation.referee import Referee
from runfold.simulation.script import Script, script
from runfold.simulation.services import AGENT

WRONG = (None, b"", b"\x00\x00\x00\x00\x07", b"\xc3\x01" + b"8" * 12, b"no record")
AGAIN_SECONDS = 0.5


class Clients:
    """``accepted``: the runs that the log took, in order. ``cancelled``: those of them somebody cancelled."""

    def __init__(self, broker: SimulatedBroker, plan: Plan, chance: Chance, scripts: dict[str, Script], referee: Referee) -> None:
        self.accepted: dict[str, RunRequested] = {}
        self.cancelled: set[str] = set()
        self._broker, self._plan, self._chance, self._scripts, self._referee = broker, plan, chance, scripts, referee
        self._commands = MemoryCommands(broker.link())

    async def submit_all(self) -> None:
        chance, plan = self._chance, self._plan
        for _ in range(plan.runs):
            await asyncio.sleep(chance.uniform(0, plan.seconds / plan.runs))
            request = self._request()
            self._scripts[request.run_id] = script(request.run_id, chance)
            await self._insist(request)
            self.accepted[request.run_id] = request
            if chance.happens(0.15):
                await self._repeat()

    def _request(self) -> RunRequested:
        chance = self._chance
        limits = Limits(
            timeout_ms=chance.choice((None, None, None, 5_000, 60_000)),
            max_steps=chance.choice((None, None, None, 3)),
            token_budget=chance.choice((None, None, None, 3_000)),
            cost_ceiling=chance.choice((None, None, None, Decimal("0.003"))),
            progress_timeout_ms=chance.choice((None, None, None, 15_000)),
        )
        agent = AGENT if chance.happens(0.97) else "nobody"
        return RunRequested(run_id=self._new_id(), agent=agent, input="go" if chance.happens(0.97) else " ", limits=limits)

    def _new_id(self) -> str:
        return str(UUID(int=self._chance.getrandbits(128), version=4))

    async def _insist(self, command: Command) -> None:
        """Send until the log has it; it may then have it twice."""
        while True:
            try:
                await self._commands.send(command)
                return
            except LogUnavailable:
                await asyncio.sleep(AGAIN_SECONDS)

    async def disturb(self, seconds: float) -> None:
        """For so long: cancel runs, ask for some again, and write what does not belong there."""
        chance = self._chance
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(chance.uniform(0.2, 6))
            await chance.choice((self._cancel, self._cancel_nothing, self._resume, self._repeat, self._poison, self._forge))()

    async def _cancel(self) -> None:
        if self.accepted and self._chance.happens(0.5):
            run_id = self._chance.choice(list(self.accepted))
            await self._insist(RunCancelRequested(run_id=run_id, command_id=self._new_id(), requested_by="client"))
            self.cancelled.add(run_id)

    async def _cancel_nothing(self) -> None:
        await self._insist(RunCancelRequested(run_id=self._new_id(), command_id=self._new_id(), requested_by="client"))

    async def _resume(self) -> None:
        if self.accepted:
            command = RunResumeRequested(
                run_id=self._chance.choice(list(self.accepted)),
                command_id=self._new_id(),
                requested_by="client",
                token_budget=100_000,
                cost_ceiling=Decimal(1),
            )
            await self._insist(command)
            if self._chance.happens(0.3):
                await self._insist(command)

    async def _repeat(self) -> None:
        if self.accepted and not self._plan.small:  # a small overlap does not remember for long
            await self._insist(self._chance.choice(list(self.accepted.values())))

    async def _poison(self) -> None:
        """What nobody can read, of no run, or of one that there is: then perhaps in its owner's name."""
        chance = self._chance
        key = chance.choice((None, b"no run id", self._new_id().encode()))
        lane = None
        partition = chance.randrange(self._plan.partitions)
        if self.accepted and chance.happens(0.4):
            key = chance.choice(list(self.accepted)).encode()
            partition = partition_of(key, self._plan.partitions)
            lane = chance.choice((None, b"anybody:1"))
        self._broker.put(partition, key, chance.choice(WRONG), lane=lane)

    async def _forge(self) -> None:
        """What an owner wrote under an older lease comes up now, outside any transaction."""
        if not self.accepted or self._plan.small:  # a fold that begins behind a lease does not know what is older than it
            return
        event = _end(self._chance.choice(list(self.accepted)))
        partition = partition_of(event.run_id.encode(), self._plan.partitions)
        if (epoch := self._referee.books[partition].epoch) > 0:
            self._referee.forged.add((partition, self._broker.partitions[partition].end))
            stale = CODEC.encode(replace(event, epoch=epoch - 1))
            self._broker.put(partition, event.run_id.encode(), stale, b"RunFinished")


def _end(run_id: str) -> RunFinished:
    return RunFinished(
        run_id=run_id,
        epoch=-1,
        status=Status.FAILED,
        reason=Reason.API_ERROR,
        detail="forged",
        output="",
        command_id=None,
        steps=0,
        usage=Usage(),
        cost=None,
    )
