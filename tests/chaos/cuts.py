"""The cable of one machine is cut for longer than its session, and mended: others take over, it comes back, no harm is done."""

import asyncio
import socket
import time
from pathlib import Path

from runfold.local import Kafka
from tests.chaos import network
from tests.chaos.effects import begun_without_lease
from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import Ground, ground
from tests.chaos.load import Plan

OTHERS = ("worker-A", "worker-B")
AWAY = "worker-far"
TAKEOVER_SECONDS = 2.0  # beyond the session
BACK_SECONDS = 15.0  # connections that were cut are tried again after pauses that have doubled


class NearAndFar(Kafka):
    """A broker that other machines reach at ``address``, and this one as ever: each is told its own address."""

    def __init__(self, home: Path, address: str) -> None:
        super().__init__(home)
        self._address = address

    @property
    def far(self) -> str:
        """Its bootstrap address for the other machines."""
        return (self.home / "far").read_text()

    def _write(self, name: str, text: str) -> None:
        if name == "server.properties":
            near, controller = (f"127.0.0.1:{port}" for port in (self.home / "ports").read_text().split())
            super()._write("far", far := f"{self._address}:{_free_port(self._address)}")
            text += f"listeners=PLAINTEXT://{near},FAR://{far},CONTROLLER://{controller}\n"
            text += "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        super()._write(name, text)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        return int(listener.getsockname()[1])


async def cut_off(root: Path, seed: int, *, cuts: int, session_ms: int) -> Report:
    session = session_ms / 1000
    report = Report(f"network cut longer than a session of {session:g} s, {cuts} cuts, seed {seed}")
    if reason := await asyncio.to_thread(network.why_not):
        report.skipped = reason
        return report
    with network.Machine() as machine:
        kafka = NearAndFar(root / "far-broker", machine.here)
        await asyncio.to_thread(kafka.start)
        try:
            await _cut_and_mend(machine, kafka, root, report, seed, cuts, session_ms)
        finally:
            await asyncio.to_thread(kafka.stop)
    return report


async def _cut_and_mend(
    machine: network.Machine, kafka: NearAndFar, root: Path, report: Report, seed: int, cuts: int, session_ms: int
) -> None:
    plan, session = Plan(60, turns=8, fastest=0.2, slowest=1.5), session_ms / 1000
    takeovers, returns, acts = list[float](), list[float](), list[str]()
    async with ground(
        kafka.bootstrap, root, seed=seed, plan=plan, partitions=6, session_ms=session_ms, heartbeat_ms=session_ms // 12
    ) as field:
        await field.start(*OTHERS)
        await field.start(AWAY, where={network.NAMESPACE: machine.name}, bootstrap=kafka.far)
        await field.busy()
        pid = field.ledger.pid_of("worker", AWAY)
        for _ in range(cuts):
            await field.balanced()
            await field.wait(field.draw.uniform(1.0, 2.0))
            leases = field.leases_of(AWAY)
            cut_at = time.monotonic()
            machine.cut()
            times = await field.moved(leases)
            takeovers += [times.get(lease.partition, float("inf")) - cut_at for lease in leases]
            taken_at = min(times.values(), default=cut_at)
            await field.wait(field.draw.uniform(0.5, 2.5))
            mended_at = time.monotonic()
            machine.mend()
            returns.append(await _back(field, mended_at))
            await field.wait(field.draw.uniform(0.5, 1.5))
            acts += await begun_without_lease(field, AWAY, pid, taken_at, mended_at)
        report.at_most("others go on after the cut max", largest(takeovers), session + TAKEOVER_SECONDS, " s")
        report.say(f"p50 {percentile(takeovers, 50):.2f} s of {len(takeovers)} partitions")
        report.at_most("owns again after the mending max", largest(returns), BACK_SECONDS, " s")
        report.none("new calls and side effects after takeover", acts)
        await field.judge(report, killed=[pid])
        report.none("accidents", field.processes.accidents())


async def _back(field: Ground, mended_at: float) -> float:
    """Seconds from the mending until the machine owned a partition again."""

    def owns() -> bool:
        return any(lease.worker == AWAY and lease.at > mended_at for leases in field.watcher.leases.values() for lease in leases)

    return time.monotonic() - mended_at if await field.until("the machine to come back", owns) else float("inf")
