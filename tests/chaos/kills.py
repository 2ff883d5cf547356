"""kill -9 of worker processes under load: their keepers fork the next ones, and the runs go on."""

import os
import signal
import time
from itertools import cycle, islice
from pathlib import Path

from tests.chaos.figures import Report, percentile
from tests.chaos.ground import ground
from tests.chaos.load import Plan

WORKERS = ("worker-A", "worker-B", "worker-C")


async def kill_workers(bootstrap: str, root: Path, seed: int, kills: int, runs: int) -> Report:
    report = Report(f"kill -9 of a worker process, {runs} open runs on 12 partitions, {kills} kills, seed {seed}")
    plan = Plan(runs, turns=12, fastest=6, slowest=12)
    pauses, killed = list[float](), list[int]()
    async with ground(bootstrap, root, seed=seed, plan=plan) as field:
        await field.start(*WORKERS)
        await field.busy()
        for name in islice(cycle(WORKERS), kills):  # by turns: a step that four workers died of would be taken for the cause
            leases, pid = field.leases_of(name), field.ledger.pid_of("worker", name)
            field.processes.killed.add(pid)
            at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            times = await field.moved(leases)
            pauses += [times.get(lease.partition, float("inf")) - at for lease in leases]
            await field.wait(field.draw.uniform(1.5, 3.5))
        report.at_most("next step committed p50", percentile(pauses, 50), 0.6, " s")
        report.at_most("p99", percentile(pauses, 99), 1.2, " s")
        report.say(f"max {max(pauses):.2f} s of {len(pauses)} partitions")
        await field.judge(report, killed=killed)
        report.none("accidents", field.processes.accidents())
    return report
