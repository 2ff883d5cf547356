"""kill -9 of worker processes under load: their keepers fork the next ones, and the runs go on.

One kill is measured at a time: the next comes when every partition has gone on from the last, and when what the last kill of the
same worker interrupted has been made good. A step that dies once more with each try would be taken for the cause, as it should.
"""

import os
import signal
import time
from itertools import cycle, islice
from pathlib import Path

from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import PATIENCE, Ground, ground
from tests.chaos.load import Plan

WORKERS = ("worker-A", "worker-B", "worker-C")


async def kill_workers(bootstrap: str, root: Path, seed: int, *, kills: int, plan: Plan, lean: bool) -> Report:
    report = Report(f"kill -9 of a worker process, {plan.runs} open runs on 12 partitions, {kills} kills, seed {seed}")
    pauses, killed = list[float](), list[int]()
    async with ground(bootstrap, root, seed=seed, plan=plan, lean=lean) as field:
        await field.start(*WORKERS)
        await field.busy()
        for name in islice(cycle(WORKERS), kills):
            await made_good(field, report, name)
            times, pid = await kill(field, name)
            pauses += times
            killed.append(pid)
            await field.wait(field.draw.uniform(1.0, 2.5))
        report.at_most("next step committed p50", percentile(pauses, 50), 0.6, " s")
        report.at_most("p99", percentile(pauses, 99), 1.2, " s")
        report.say(f"max {largest(pauses):.2f} s of {len(pauses)} partitions")
        await field.judge(report, killed=killed)
        report.none("accidents", field.processes.accidents())
    return report


async def kill(field: Ground, name: str) -> tuple[list[float], int]:
    """Seconds until the next step of a run was committed, one per partition, infinite for none; the pid that was killed."""
    leases, pid = field.leases_of(name), field.ledger.pid_of("worker", name)
    field.processes.killed.add(pid)
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    times = await field.moved(leases)
    return [times.get(lease.partition, float("inf")) - at for lease in leases], pid


async def made_good(field: Ground, report: Report, *names: str) -> None:
    """Until no step is under way on these workers' partitions that a worker has died of already."""
    assert field.load is not None

    def again() -> list[str]:
        owned, attempts = set[int]().union(*map(field.watcher.owned_by, names)), list(field.watcher.attempts.items())
        return [run_id for run_id, attempt in attempts if attempt > 1 and field.partition_of(run_id) in owned]

    fine = await field.until("interrupted steps to be made again", lambda: not again(), 2 * field.load.plan.slowest + PATIENCE)
    report.wants(f"all interrupted steps to be made again, {len(again())} are not", fine)
