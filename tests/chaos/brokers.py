"""Brokers that die under load: the only one, and one of three that led partitions and coordinated the group."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from confluent_kafka.admin import AdminClient

from runfold.local import Kafka
from tests.chaos.cluster import Cluster
from tests.chaos.figures import Report, largest
from tests.chaos.ground import Ground, ground
from tests.chaos.load import Plan

ALONE_SECONDS = 20.0  # from the moment the broker answers again until every partition has gone on
CLUSTER_SECONDS = 20.0  # from the kill until every partition has gone on
WORKERS = ("worker-A", "worker-B", "worker-C")


async def kill_the_only_broker(root: Path, seed: int, kills: int) -> Report:
    """kill -9, and start it again after a second or two."""
    report = Report(f"kill -9 and restart of the only broker under load, {kills} kills, seed {seed}")
    kafka = Kafka(root / "lone-broker")
    await asyncio.to_thread(kafka.start)
    try:
        async with ground(kafka.bootstrap, root, seed=seed, plan=Plan(60, 6, 0.2, 1.5), partitions=6) as field:
            await field.start(*WORKERS)
            await field.busy()
            recoveries = []
            for _ in range(kills):
                await asyncio.to_thread(kafka.kill)
                await asyncio.sleep(field.draw.uniform(0.5, 2.0))
                await asyncio.to_thread(kafka.start)
                recoveries.append(await _all_go_on(field, time.monotonic(), ALONE_SECONDS))
                await field.wait(field.draw.uniform(2.0, 4.0))
            report.at_most("all partitions go on after the broker answers max", largest(recoveries), ALONE_SECONDS, " s")
            await _judge(field, report)
    finally:
        await asyncio.to_thread(kafka.stop)
    return report


async def kill_nodes(root: Path, seed: int, kills: int) -> Report:
    """Of three nodes the one that coordinates the group dies, or any that leads partitions; it comes back later."""
    report = Report(f"kill -9 of a leader or coordinator in a cluster of three, {kills} kills, seed {seed}")
    cluster = Cluster(root / "cluster")
    await asyncio.to_thread(cluster.__enter__)
    try:
        plan = Plan(40, 6, 0.5, 2.0)
        async with ground(cluster.bootstrap, root, seed=seed, plan=plan, partitions=6, replication=3) as field:
            await field.start(*WORKERS)
            await field.busy()
            recoveries = []
            for number in range(kills):
                coordinator = await asyncio.to_thread(_coordinator, cluster.bootstrap, field.settings.group)
                victim = coordinator if number % 2 == 0 else field.draw.choice([1, 2, 3])
                node = cluster.nodes[victim - 1]
                report.say(f"node {victim}{' (coordinator)' if victim == coordinator else ''}")
                at = time.monotonic()
                await asyncio.to_thread(node.kill)
                recoveries.append(await _all_go_on(field, at, CLUSTER_SECONDS))
                if number + 1 < kills:
                    await asyncio.to_thread(node.start)
                    await field.wait(field.draw.uniform(3.0, 5.0))  # back in all in-sync sets
            report.at_most("kill to all partitions going on max", largest(recoveries), CLUSTER_SECONDS, " s")
            await _judge(field, report)
    finally:
        await asyncio.to_thread(cluster.__exit__)
    return report


async def _judge(field: Ground, report: Report) -> None:
    report.say(f"longest silence of the whole log {_longest_gap(field.watcher.steps):.1f} s")
    await field.judge(report, killed=_pids(field), ended=True)
    report.none("workers that ended", field.processes.accidents())


def _pids(field: Ground) -> set[int]:
    """A worker that loses its lease with the broker aborts what runs: its calls may be made again."""
    return {act.pid for act in field.ledger.acts("worker")}


async def _all_go_on(field: Ground, since: float, seconds: float) -> float:
    """Seconds from ``since`` until an owner has written to every partition after that moment."""

    def when() -> Sequence[float]:
        return list(field.watcher.last_write.values())

    fine = await field.until("every partition to go on", lambda: min(when()) > since, seconds)
    return time.monotonic() - since if fine else float("inf")


def _longest_gap(times: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(times)), default=float("nan"))


def _coordinator(bootstrap: str, group: str) -> int:
    """The node that coordinates the group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    futures = admin.describe_consumer_groups([group])
    return int(futures[group].result(10).coordinator.id)
