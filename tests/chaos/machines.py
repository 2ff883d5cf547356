"""Loss of a machine under load: keeper and worker are killed at once, nobody says goodbye, the session has to run out."""

import time
from itertools import count
from pathlib import Path

from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import Ground, ground
from tests.chaos.load import Plan

TARGETS = {6000: 8.0, 1500: 3.0}  # seconds, by session timeout in ms
HEARTBEATS = {6000: 250, 1500: 200}


async def lose_machines(bootstrap: str, root: Path, seed: int, losses: int, session_ms: int) -> Report:
    report = Report(f"loss of a machine, session {session_ms / 1000:g} s, {losses} losses, seed {seed}")
    plan = Plan(100, turns=8, fastest=0.5, slowest=2)
    pauses, killed, names = list[float](), list[int](), count(1)
    async with ground(bootstrap, root, seed=seed, plan=plan, session_ms=session_ms, heartbeat_ms=HEARTBEATS[session_ms]) as field:
        present = [f"machine-{next(names)}" for _ in range(3)]
        await field.start(*present)
        await field.busy()
        for _ in range(losses):
            name = present.pop(field.draw.randrange(len(present)))
            times, pid = await lose(field, name)
            pauses += times
            killed.append(pid)
            await field.start(fresh := f"machine-{next(names)}")
            present.append(fresh)
            await field.wait(field.draw.uniform(0.5, 1.5))
        report.at_most("next step committed p99", percentile(pauses, 99), TARGETS[session_ms], " s")
        report.say(f"p50 {percentile(pauses, 50):.2f} s, max {largest(pauses):.2f} s of {len(pauses)} partitions")
        await field.judge(report, killed=killed)
        report.none("accidents", field.processes.accidents())
    return report


async def lose(field: Ground, name: str) -> tuple[list[float], int]:
    """Seconds until others had committed a next step, one per partition, infinite for none; the worker's pid."""
    leases, at = field.leases_of(name), time.monotonic()
    pid = strike(field, name)
    times = await field.moved(leases)
    return [times.get(lease.partition, float("inf")) - at for lease in leases], pid


def strike(field: Ground, name: str) -> int:
    """Kill a keeper and its worker; the worker's pid."""
    pid = field.ledger.pid_of("worker", name)
    field.processes.kill_both(name, pid)
    field.processes.killed.add(pid)
    return pid
