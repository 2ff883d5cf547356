"""Z05: two deployments on one Kafka cluster, which differ in topic and group and in nothing else."""

import asyncio
from uuid import uuid4

import pytest

from runfold.core.events import Status
from runfold.testing import Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_kafka import transactional_ids

RUNS = 10
PARTITIONS = 2
SCRIPT = Script().then_tool_use("toolu_a", "a", {}).then_tool_use("toolu_b", "b", {}).then_text("done").after(0.5)
RESETS = ("Fenced", "Expelled", "LogUnavailable")


async def work(house: Scene) -> None:
    """Runs one after the other and side by side, so that both deployments write for as long as it takes."""
    run_ids = [await house.post(f"Z05 {uuid4()}") for _ in range(RUNS)]
    await house.ended(*run_ids, seconds=60)
    assert [house.run(one).status for one in run_ids] == [Status.SUCCEEDED] * RUNS, "Z05.1"


async def test_two_deployments_on_one_cluster_do_not_fence_each_other(
    bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Z05.1, Z05.2"""
    roots = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
    async with (
        scene(bootstrap, postgres, roots[0], SCRIPT, partitions=PARTITIONS) as one,
        scene(bootstrap, postgres, roots[1], SCRIPT, partitions=PARTITIONS) as other,
    ):
        assert one.settings.namespace == other.settings.namespace, "or there is nothing to prove"
        await asyncio.gather(one.start("worker-A"), other.start("worker-A"))
        await asyncio.gather(work(one), work(other))
        for house in (one, other):
            for cause in RESETS:
                assert not await house.processes.metric("worker-A", f'runfold_lease_resets_total{{cause="{cause}"}}'), "Z05.1"
            assert house.leases() == PARTITIONS, "Z05.1: and no second lease was needed"
            assert not [said for said in house.processes.messages("worker-A") if "fence" in said.lower()], "Z05.1"
            await house.check_all()
        known = await asyncio.to_thread(transactional_ids, one.settings)
        for house, foreign in ((one, other), (other, one)):
            name = house.settings.topic
            ours = {id_ for id_ in known if name in id_}
            assert ours == {f"{house.settings.namespace}.{house.settings.group}.{name}.{n}" for n in range(PARTITIONS)}, "Z05.2"
            assert not any(foreign.settings.topic in id_ for id_ in ours), "Z05.2"
