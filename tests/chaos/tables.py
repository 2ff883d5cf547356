"""PostgreSQL away: runs go on, and the tables catch up with the log."""

import asyncio
import time
from pathlib import Path

from runfold.cli.wiring.projector import project
from runfold.config import Settings
from runfold.core.events import Delivery
from runfold.local import Postgres
from tests.cases.harness_processes import Background
from tests.chaos.figures import Report
from tests.chaos.ground import everything, ground
from tests.chaos.load import Plan
from tests.tables import assert_tables_equal_fold, dump

CATCH_UP_SECONDS = 10.0
LEAST_SHARE = 0.7  # of the steps before, while it is away


async def lose_postgres(bootstrap: str, root: Path, seed: int, away: float) -> Report:
    report = Report(f"PostgreSQL down for {away:g} s under load, seed {seed}")
    postgres = Postgres(root / "postgres")
    await asyncio.to_thread(postgres.start)
    try:
        async with ground(bootstrap, root, seed=seed, plan=Plan(40, 6, 0.3, 1.5), partitions=4) as field:
            settings = field.settings.model_copy(update={"dsn": postgres.dsn})
            projector = Background(lambda stop: project(settings, "public", stop))
            projector.start()
            try:
                await field.start("worker-A", "worker-B")
                await field.busy()
                await field.wait(away)
                before = _steps(field.watcher.steps, away)
                await asyncio.to_thread(postgres.kill)
                await field.wait(away)
                during = _steps(field.watcher.steps, away)
                await asyncio.to_thread(postgres.start)
                report.say(f"steps in {away:g} s: {before} before, {during} meanwhile")
                report.wants(f"at least {LEAST_SHARE:.0%} of the steps meanwhile", during >= before * LEAST_SHARE)
                report.at_most("catches up within", await _level(field.watcher.ends, postgres.dsn), CATCH_UP_SECONDS, " s")
                await field.judge(report, ended=True)
                await _level(field.watcher.ends, postgres.dsn)
                await asyncio.to_thread(_compare, settings, field.partitions)
                report.say("tables equal the fold")
            finally:
                await projector.stop()
    finally:
        await asyncio.to_thread(postgres.stop)
    return report


def _compare(settings: Settings, partitions: int) -> None:
    log: list[list[Delivery]] = [[] for _ in range(partitions)]
    for delivery in everything(settings):
        log[delivery.partition].append(delivery)
    assert_tables_equal_fold(settings.dsn, log)


def _steps(times: list[float], seconds: float) -> int:
    """How many in the last ``seconds``."""
    return sum(at > time.monotonic() - seconds for at in times)


async def _level(ends: dict[int, int], dsn: str) -> float:
    """Seconds until the tables hold what the log holds now."""
    wanted, began = dict(ends), time.monotonic()
    while time.monotonic() < began + 3 * CATCH_UP_SECONDS:
        rows = (await asyncio.to_thread(dump, dsn))["projection_offset"]
        reached = {row["partition"]: row["next_offset"] for row in rows}
        if all(reached.get(partition, 0) >= end for partition, end in wanted.items()):
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return float("inf")
