"""One simulated world: a broker, machines with real workers, clients, a model and tools, and what befalls them."""

import asyncio
from collections.abc import Callable

from runfold.core.events import Record, Status
from runfold.core.run import Run
from runfold.core.shard import Ignored
from runfold.model.retrying import Backoff, RetryPolicy
from runfold.simulation.broker import Link, SimulatedBroker
from runfold.simulation.chance import CALM, Plan, stream
from runfold.simulation.chaos import Chaos
from runfold.simulation.clients import Clients
from runfold.simulation.ending import complaints_at_the_end
from runfold.simulation.log import SimulatedLog
from runfold.simulation.loop import Process, VirtualLoop
from runfold.simulation.machine import Machine
from runfold.simulation.referee import Referee
from runfold.simulation.script import Script
from runfold.simulation.services import FlatPrice, SimulatedAgents, SimulatedModel, SimulatedTools
from runfold.worker.resources import Resources

PATIENCE = 300.0  # seconds after the last fault, until all is as it must be
LOOK_SECONDS = 1.0
BACKOFF = Backoff(attempts=4, base=0.5, cap=5.0)  # of a model call


class World:
    """Made inside its loop; `play` is its whole life. ``complaints`` are what did not hold: the first one ends it."""

    def __init__(self, loop: VirtualLoop, seed: int, plan: Plan, note: Callable[[str], None] | None) -> None:
        self.loop, self.seed, self.plan = loop, seed, plan
        self.complaints: list[str] = []
        self._note = note
        self.referee = Referee(plan.partitions, plan.overlap, loop.time, self.complain, self.note)
        self.scripts: dict[str, Script] = {}
        self.broker = SimulatedBroker(plan.partitions, stream(seed, "broker"), plan.rates, loop.time)
        self.broker.changed, self.broker.fenced = self.referee.changed, self.referee.fenced
        self.model = SimulatedModel(self.scripts, stream(seed, "model"), plan.rates, self.referee)
        self.tools = SimulatedTools(stream(seed, "tools"), plan.rates, self.referee)
        self.clients = Clients(self.broker, plan, stream(seed, "clients"), self.scripts, self.referee)
        self.machines = [Machine(self, name) for name in "ABCD"[: plan.machines]]
        self._chance = stream(seed, "workers")

    # ---- for its parts

    def process(self, name: str) -> Process:
        return Process(self.loop, name)

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Do something, whoever is frozen or dead by then."""
        self.loop.world.post(seconds, what)

    def complain(self, complaint: str) -> None:
        self.complaints.append(complaint)
        self.note(f"VIOLATION {complaint}")
        self.loop.halt()

    def note(self, line: str) -> None:
        if self._note is not None:
            self._note(f"{self.loop.time():9.3f} {line}")

    def resources(self, process: Process, link: Link) -> Resources:
        """What a new worker process works with."""
        return Resources(
            worker=process.name,
            build="simulated",
            log=SimulatedLog(link, self.broker.chance),
            model=self.model,
            agents=SimulatedAgents(self.tools),
            pricing=FlatPrice(),
            retries=RetryPolicy(overloads=BACKOFF, mishaps=BACKOFF, retry_after_cap=10.0),
            observer=Observer(self, process.name),
            overlap=self.plan.overlap,
            max_model_calls=4,
            max_tool_calls=4,
            draw=self._chance.random,
        )

    # ---- its life

    async def play(self) -> None:
        chaos = Chaos(self, stream(self.seed, "chaos"))
        expiry = asyncio.create_task(self.broker.expire())
        for machine in self.machines:
            machine.boot()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.clients.submit_all())
            group.create_task(self.clients.disturb(self.plan.seconds))
            group.create_task(chaos.rage(self.plan.seconds))
        self.broker.rates = self.model.rates = self.tools.rates = CALM
        chaos.heal()
        self.note("healed")
        await self._rest()
        expiry.cancel()

    async def _rest(self) -> None:
        """Wait until all is as it must be in the end."""
        until = self.loop.time() + PATIENCE
        while not all(map(self._rests, self.clients.accepted)) or any(complaints_at_the_end(self)):
            if self.loop.time() > until:
                for complaint in complaints_at_the_end(self):
                    self.complain(complaint)
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _rests(self, run_id: str) -> bool:
        run = self.referee.run(run_id)
        return run is not None and (run.status.final or run.status is Status.SUSPENDED or run_id in self.referee.parked)


class Observer:
    """A `runfold.ports.Observer` that writes the trace."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def applied(self, record: Record, run: Run) -> None: ...

    def resumed(self, run: Run) -> None: ...

    def ignored(self, record: Record, why: Ignored) -> None: ...

    def unreadable(self, delivery: object) -> None: ...

    def acquired(self, partition: int, epoch: int, records: int, seconds: float) -> None:
        self._world.note(f"{self._name} owns partition {partition}, epoch {epoch}, {records} records in {seconds:.3f} s")

    def took_over(self, partition: int, fold_seconds: float, failover: object) -> None: ...

    def late(self, run_id: str, result: object) -> None: ...

    def buried(self, delivery: object) -> None: ...

    def released(self, partition: int) -> None:
        self._world.note(f"{self._name} lets partition {partition} go")

    def reset(self, partition: int, error: Exception) -> None:
        self._world.note(f"{self._name} resets partition {partition}: {type(error).__name__}: {error}")

    def committed(self, partition: int, events: int, commit_seconds: float, echo_seconds: float) -> None: ...
