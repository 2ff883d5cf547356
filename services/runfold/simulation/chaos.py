"""Faults that befall machines and the broker, at times and places that the seed chooses, and their healing."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from runfold.simulation.chance import PER_MINUTE, Chance, freeze_seconds
from runfold.simulation.loop import Process
from runfold.simulation.machine import Machine

if TYPE_CHECKING:
    from runfold.simulation.world import World

STEPS = 40  # callbacks until a kill or a freeze happens, at most: in the middle of whatever the process does


class Chaos:
    """`rage` for a while, then `heal`."""

    def __init__(self, world: "World", chance: Chance) -> None:
        self._world, self._chance = world, chance
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._faults: dict[str, Callable[[Machine], None]] = {name: getattr(self, f"_{name}") for name in PER_MINUTE}

    async def rage(self, seconds: float) -> None:
        rates = self._world.plan.rates
        weights = [getattr(rates, name) for name in PER_MINUTE]
        until = self._loop.time() + seconds
        while sum(weights) and self._loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(sum(weights) / 60))
            name = self._chance.choices(PER_MINUTE, weights)[0]
            machine = self._chance.choice(self._world.machines)
            self._world.note(f"fault: {name} {machine.name}")
            self._faults[name](machine)

    def heal(self) -> None:
        """Everything works again, and nothing breaks any more."""
        self._over = True
        world = self._world
        world.broker.start()
        for machine in world.machines:
            for process in self._processes(machine):
                process.thaw()
            self._cut_worker(machine, seconds=0)
            self._cut_keeper(machine, seconds=0)
            machine.boot()

    def _some_steps(self, process: Process, what: Callable[[], object]) -> None:
        process.befall(self._chance.randint(1, STEPS), lambda: None if self._over else what())

    # ---- faults

    def _kill_worker(self, machine: Machine) -> None:
        if machine.worker is not None:
            self._some_steps(machine.worker.process, machine.worker.process.kill)

    def _kill_machine(self, machine: Machine) -> None:
        self._some_steps(machine.keeper, machine.kill)
        self._world.later(self._chance.uniform(1, 15), machine.boot)

    def _restart(self, machine: Machine) -> None:
        machine.restart(self._chance.uniform(0, 15))

    def _freeze_worker(self, machine: Machine) -> None:
        if machine.worker is not None:
            self._freeze(machine.worker.process)

    def _freeze_keeper(self, machine: Machine) -> None:
        self._freeze(machine.keeper)

    def _freeze_machine(self, machine: Machine) -> None:
        for process in self._processes(machine):
            self._freeze(process)

    def _processes(self, machine: Machine) -> list[Process]:
        return [machine.keeper, *([machine.worker.process] if machine.worker else [])]

    def _freeze(self, process: Process) -> None:
        seconds = freeze_seconds(self._chance)
        self._some_steps(process, lambda: process.freeze(seconds))

    def _cut_worker(self, machine: Machine, seconds: float | None = None) -> None:
        if machine.worker is None:
            return
        link = machine.worker.link
        seconds = self._chance.uniform(0.2, 12) if seconds is None else seconds
        link.set_cut(seconds > 0)
        self._world.later(seconds, lambda: link.set_cut(False))

    def _cut_keeper(self, machine: Machine, seconds: float | None = None) -> None:
        if machine.seat is None:
            return
        seat = machine.seat
        seconds = self._chance.uniform(0.2, 12) if seconds is None else seconds
        seat.cut = seconds > 0

        def mend() -> None:
            seat.cut = False

        self._world.later(seconds, mend)

    def _stop_broker(self, machine: Machine) -> None:
        self._world.broker.stop()
        self._world.later(self._chance.uniform(0.2, 8), self._world.broker.start)

    def _jump_clock(self, machine: Machine) -> None:
        self._world.broker.skew += round(self._chance.uniform(-5000, 5000))
