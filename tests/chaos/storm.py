"""Workers that come and go all the time while people give orders to runs."""

from itertools import count
from pathlib import Path

from tests.chaos.figures import Report
from tests.chaos.ground import ground
from tests.chaos.load import Plan
from tests.chaos.machines import strike
from tests.chaos.orders import Orders

ANSWER_SECONDS = 5.0  # p99; a lost machine's session is 2 s


async def storm(bootstrap: str, root: Path, seed: int, comings: int) -> Report:
    """Each time a fresh worker joins and another one leaves: stopped, or lost with its machine."""
    report = Report(f"cancels and resumes in a storm of rebalances, {comings} workers come and go, seed {seed}")
    plan, names, killed = Plan(60, 8, 0.3, 2.0), count(1), list[int]()
    async with ground(bootstrap, root, seed=seed, plan=plan, session_ms=2000, heartbeat_ms=200) as field:
        present = [f"worker-{next(names)}" for _ in range(3)]
        await field.start(*present)
        await field.busy()
        async with Orders(field) as orders:
            for number in range(comings):
                name = present.pop(field.draw.randrange(len(present)))
                present.append(fresh := f"worker-{next(names)}")
                if number % 2:
                    killed.append(strike(field, name))
                else:
                    await field.processes.stop(name)
                await field.start(fresh)
        await orders.judge(report, ANSWER_SECONDS)
        await field.judge(report, killed=killed, cancelled=orders.cancelled)
    return report
