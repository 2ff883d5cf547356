"""SIGSTOP beyond the session and SIGCONT: whoever was frozen wakes as a zombie, and must neither write nor act."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cases.harness_processes import wait_for_end
from tests.chaos.effects import begun_without_lease
from tests.chaos.figures import Report, largest
from tests.chaos.ground import Ground, ground
from tests.chaos.load import Plan

WORKERS = ("worker-A", "worker-B", "worker-C")
TARGET = 5.0  # seconds from SIGCONT until it owns something again, or has ended
WHO = {"worker": ("worker",), "keeper": ("keeper",), "both": ("keeper", "worker")}


async def freeze(bootstrap: str, root: Path, seed: int, *, rounds: int, session_ms: int, lean: bool) -> Report:
    """Each round freezes a worker, a keeper, and both of one machine."""
    report = Report(f"SIGSTOP beyond a session of {session_ms / 1000:g} s, {rounds} rounds of worker, keeper, both, seed {seed}")
    plan = Plan(100, turns=8, fastest=0.2, slowest=2)
    returns, acts, killed = list[float](), list[str](), list[int]()
    async with ground(
        bootstrap, root, seed=seed, plan=plan, session_ms=session_ms, heartbeat_ms=session_ms // 12, lean=lean
    ) as field:
        await field.start(*WORKERS)
        await field.busy()
        for who in [*WHO] * rounds:
            zombie = await freeze_and_wake(field, field.draw.choice(WORKERS), who, report)
            killed.append(zombie.pid)
            returns.append(zombie.back_after)
            acts += zombie.acts
        report.at_most("exits or owns again after waking max", largest(returns), TARGET, " s")
        report.none("new side effects after takeover", acts)
        await field.judge(report, killed=killed)
    return report


@dataclass(frozen=True, slots=True)
class Zombie:
    """A worker process that was frozen; its steps may be repeated, for another owner cannot know that it will wake."""

    pid: int
    back_after: float  # seconds
    acts: list[str]  # what it has begun under a lease of before


async def freeze_and_wake(field: Ground, name: str, who: str, report: Report) -> Zombie:
    """``who`` of a machine is frozen for longer than its session."""
    pid = field.ledger.pid_of("worker", name)
    field.processes.killed.add(pid)
    woken_at = await _frozen(field, name, who, report)
    back_after = await _returned(field, name, pid, woken_at)
    await field.wait(field.draw.uniform(0.5, 1.5))
    return Zombie(pid, back_after, await begun_without_lease(field, name, pid, woken_at, woken_at))


async def _frozen(field: Ground, name: str, who: str, report: Report) -> float:
    """Freeze until others (or the keeper's next worker) have taken over, and a little longer; when it was woken."""
    leases = field.leases_of(name)
    pids = [field.ledger.pid_of(part, name) for part in WHO[who]]
    at = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        times = await field.moved(leases)
        report.wants(f"all partitions of a frozen {who} to be taken over", len(times) == len(leases))
        report.say(f"{who} frozen: taken over after {largest(list(times.values())) - at:.1f} s")
        await field.wait(field.draw.uniform(0.5, 1.5))
    finally:
        woken_at = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):  # a worker that is frozen alone has been replaced
                os.kill(pid, signal.SIGCONT)
    return woken_at


async def _returned(field: Ground, name: str, pid: int, woken_at: float) -> float:
    """Seconds after waking until it owned something again or was gone."""

    def back() -> bool:
        owns = any(lease.worker == name and lease.at > woken_at for leases in field.watcher.leases.values() for lease in leases)
        return owns or wait_for_end(pid, 0)

    came = await field.until("the woken to come back or end", back)
    return time.monotonic() - woken_at if came else float("inf")
