"""SIGTERM under load: what runs is finished and committed, nothing is asked for twice, another worker goes on."""

import time
from collections.abc import Iterable
from itertools import count
from math import inf
from pathlib import Path

from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import PATIENCE, Ground, ground
from tests.chaos.load import Plan
from tests.chaos.watcher import Lease

TARGET = 2.0  # seconds that a run may stand still beyond its step
WORKERS, SURGE = 3, 1  # so many at rest, and so many more while old ones are replaced


async def restart_workers(bootstrap: str, root: Path, seed: int, restarts: int) -> Report:
    """The fresh workers come first and the old ones go then, one after the other, as a rolling update does it."""
    report = Report(f"SIGTERM under load, {restarts} restarts, seed {seed}")
    plan = Plan(48, turns=8, fastest=0.2, slowest=0.8)
    between, names = list[float](), count(1)
    async with ground(bootstrap, root, seed=seed, plan=plan) as field:
        present = [f"worker-{next(names)}" for _ in range(WORKERS)]
        await field.start(*present)
        await field.busy()
        began = time.monotonic()
        for wave in range(0, restarts, SURGE):
            fresh = [f"worker-{next(names)}" for _ in range(min(SURGE, restarts - wave))]
            await field.start(*fresh)
            for new in fresh:
                name = present.pop(field.draw.randrange(WORKERS))
                present.append(new)
                between += await stop(field, name)
                await field.wait(field.draw.uniform(0.2, 1.0))
        pauses = [pause.until - pause.since for pause in list(field.watcher.pauses) if pause.since > began]
        report.at_most("pause of a run beyond its step max", largest(pauses), TARGET, " s")
        report.say(f"p99 {percentile(pauses, 99):.2f} s of {len(pauses)} pauses, steps of {plan.fastest:g} to {plan.slowest:g} s")
        report.say(f"last word of the old owner to the first step of the next max {largest(between):.2f} s")
        await field.judge(report)
        report.none("accidents", field.processes.accidents())
    return report


async def stop(field: Ground, name: str) -> list[float]:
    """SIGTERM; by partition, the time between the old owner's last record and the first event of a run under the next lease."""
    leases = field.leases_of(name)
    await field.processes.stop(name)
    await field.until("others to go on", lambda: inf not in handovers(field, leases), PATIENCE)
    return handovers(field, leases)


def handovers(field: Ground, old: Iterable[Lease]) -> list[float]:
    return [_handover(field, lease) for lease in old]


def _handover(field: Ground, old: Lease) -> float:
    """`inf` where nobody has gone on. A lease of the old owner's own, when a rebalance came between, is passed over."""
    leases = [lease for lease in field.watcher.leases[old.partition] if lease.epoch > old.epoch and lease.worker != old.worker]
    return next((lease.moved_at - leases[0].before for lease in leases if lease.moved_at is not None), inf)
