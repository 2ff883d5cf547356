"""One seed, from the world it makes to what came of it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from runfold.simulation.chance import Plan, plan_of, stream
from runfold.simulation.loop import Stuck, VirtualLoop
from runfold.simulation.scale import scaled
from runfold.simulation.world import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """``digest`` is of all that happened: two runs of one seed have the same. ``complaints``: what did not hold; good: none."""

    seed: int
    complaints: tuple[str, ...]
    digest: str
    steps: int  # callbacks
    seconds: float  # of virtual time
    calls: int  # of the model
    records: dict[str, int] = field(default_factory=dict)  # by type


def simulate(seed: int, note: Callable[[str], None] | None = None, plan: Plan | None = None) -> Outcome:
    """Play one seed, in another world than its own where a ``plan`` is given.

    ``note`` is told of everything worth reading, in order; it changes nothing.
    """
    plan = plan or plan_of(seed)
    history = sha256()

    def remember(line: str) -> None:
        history.update(line.encode())
        if note is not None:
            note(line)

    loop = VirtualLoop(stream(seed, "order"))  # type: ignore[abstract]  # what it leaves out is sockets, signals, subprocesses
    worlds: list[World] = []

    async def play() -> None:
        worlds.append(World(loop, seed, plan, remember))
        await worlds[0].play()

    stuck = []
    with scaled(plan.small), _silence(remember if note else None):
        try:
            loop.run(play())
        except Stuck as error:
            stuck.append(str(error))
    world = worlds[0]
    return Outcome(
        seed=seed,
        complaints=(*world.complaints, *stuck),
        digest=history.hexdigest()[:16],
        steps=loop.steps,
        seconds=loop.time(),
        calls=world.referee.calls,
        records=dict(world.referee.records),
    )


@contextmanager
def _silence(note: Callable[[str], None] | None) -> Iterator[None]:
    """The workers' own log lines go into the trace, or nowhere."""
    log = logging.getLogger("runfold")
    before = log.level, log.propagate
    log.setLevel(logging.CRITICAL + 1)
    log.propagate = False
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate = before[1]
