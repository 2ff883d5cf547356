"""K02 V1 on a real broker: a run that a worker of the next version began waits until there is one again."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import Problem, RunFinished, Status, Unreadable
from runfold.testing import Script
from tests.cases.harness import PATIENCE, POLL_SECONDS, Scene, scene
from tests.cases.harness_kafka import dead_letters
from tests.cases.harness_newer import NEWER

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPTS = {"K02": Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done"), "": Script().then_text("done")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("newer"), SCRIPTS, partitions=1) as house:
        await house.start("worker-new", entry=NEWER)
        yield house


def unknown(house: Scene) -> list[int]:
    """The offsets of what this version cannot read."""
    left_out = [delivery for delivery in house.log[0] if isinstance(delivery, Unreadable)]
    assert all(delivery.problem is Problem.UNKNOWN_SCHEMA for delivery in left_out)
    return [delivery.offset for delivery in left_out]


async def parked(house: Scene) -> None:
    async with asyncio.timeout(PATIENCE):
        while await house.processes.metric("worker-old", "runfold_runs_parked") != 1:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


async def test_an_older_worker_leaves_the_run_to_the_next_newer_one(house: Scene) -> None:
    """K02.1, K02.2"""
    house.world.hold("effect a")
    run_id = await house.post(f"K02 {uuid4()}")
    await house.held("effect a")
    await house.at_last(run_id, "ToolStepStarted")
    await house.until("the answer that only a newer version can read", lambda: unknown(house))
    house.processes.kill_machine("worker-new")
    before, answer = house.kinds(run_id), unknown(house)

    await house.start("worker-old")
    others = [await house.post(f"another {uuid4()}") for _ in range(3)]
    await house.ended(*others)
    assert [house.run(one).status for one in others] == [Status.SUCCEEDED] * 3, "K02.1: other runs go on"
    await parked(house)  # K02.1: visibly
    await house.read()
    assert (house.kinds(run_id), unknown(house)) == (before, answer), "K02.1: not with half the state"
    assert await asyncio.to_thread(dead_letters, house.settings, 1) == [], "K02.1: nor as poison"
    await house.projected()
    shown = (await house.ask("GET", f"/api/runs/{run_id}")).json()
    assert (shown["status"], shown["reason"]) == ("SUSPENDED", "NEEDS_NEWER_VERSION"), "K02.1: visibly, also to people"
    await house.check(*others)

    await house.processes.stop("worker-old")
    await house.start("worker-new", entry=NEWER)
    await house.ended(run_id)
    (end,) = [record.event for record in house.records(run_id) if isinstance(record.event, RunFinished)]
    assert (end.status, end.output) == (Status.SUCCEEDED, "done"), "K02.2"
    assert house.hits(run_id) == 2, "K02.2: the answer that it alone could read was not asked for again"
    assert house.executions(run_id) == ["1/toolu_a"] * 2, "the tool was killed once, and has one key"
