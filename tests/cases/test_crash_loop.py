"""R07: a run that kills its worker is quarantined after four starts of the step that does it. Its neighbours do not suffer."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.decide import MAX_STARTS
from runfold.core.events import Reason, Status, ToolStepStarted
from runfold.testing import Script
from tests.cases.harness import Scene, scene

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPTS = {"R07": Script().then_tool_use("toolu_boom", "boom", {}), "": Script().then_text("done")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Two workers with their real keepers, which tire of replacing workers that die."""
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("loop"), SCRIPTS, partitions=2) as house:
        await house.start("worker-A", "worker-B")
        yield house


def starts(house: Scene, run_id: str) -> list[int]:
    """The attempt of each start of a tool."""
    return [record.event.attempt for record in house.records(run_id) if isinstance(record.event, ToolStepStarted)]


def expect_deaths(house: Scene) -> None:
    """Those that the tool caused are the test's own."""
    house.processes.killed |= {line.pid for line in house.world.executions}


async def test_it_is_suspended_after_four_starts_and_the_others_end(house: Scene) -> None:
    """R07.1 to R07.3"""
    run_id = await house.post(f"R07 {uuid4()}")
    healthy = [await house.post_to(house.partition_of(run_id), f"healthy {uuid4()}") for _ in range(3)]
    await house.ended(*healthy, seconds=60)
    assert [house.run(one).status for one in healthy] == [Status.SUCCEEDED] * 3, "R07.3"
    await house.until("the run to be suspended", lambda: house.kinds(run_id)[-1:] == ["RunSuspended"], 60)
    run = house.run(run_id)
    assert (run.status, run.reason, run.waiting_tool_use_id) == (Status.SUSPENDED, Reason.CRASH_LOOP, "toolu_boom"), "R07.1"
    assert starts(house, run_id) == list(range(1, MAX_STARTS + 1)), "R07.2: counted in the log"
    assert house.executions(run_id) == ["1/toolu_boom"] * MAX_STARTS, "R07.2"
    expect_deaths(house)
    await house.check(run_id, *healthy, interruptions=MAX_STARTS)
    timeline = (await house.ask("GET", f"/api/runs/{run_id}/timeline")).json()
    assert [(step["seq"], step["attempt"], step["status"]) for step in timeline] == [(1, 1, "DONE"), (2, 4, "STARTED")], "R07.1"


async def test_a_resumption_gives_it_four_starts_more_and_a_cancel_ends_it(house: Scene) -> None:
    """R07.4"""
    run_id = await house.post(f"R07 {uuid4()}")
    await house.until("the run to be suspended", lambda: house.kinds(run_id)[-1:] == ["RunSuspended"], 60)
    await house.projected()
    house.world.hold("effect boom")
    assert (await house.ask("POST", f"/api/runs/{run_id}/resume")).status_code == 202
    await house.held("effect boom", 60)
    assert (await house.ask("POST", f"/api/runs/{run_id}/cancel", json={"detail": "enough"})).status_code == 202
    await house.ended(run_id)
    run = house.run(run_id)
    assert (run.status, run.reason, run.detail) == (Status.CANCELLED, Reason.CANCEL, "enough"), "R07.4"
    assert starts(house, run_id) == list(range(1, MAX_STARTS + 2))
    house.world.release("effect boom")
    expect_deaths(house)
    await house.check(run_id, interruptions=MAX_STARTS + 1)


async def test_a_cancel_gets_through_while_it_loops(house: Scene) -> None:
    """R07.4: V2"""
    house.world.hold("effect boom")
    run_id = await house.post(f"R07 {uuid4()}")
    await house.held("effect boom", 60)
    await house.projected()
    house.world.release("effect boom")
    assert (await house.ask("POST", f"/api/runs/{run_id}/cancel")).status_code == 202
    await house.ended(run_id, seconds=60)
    assert house.run(run_id).status is Status.CANCELLED, "R07.4"
    assert len(starts(house, run_id)) <= MAX_STARTS
    expect_deaths(house)
    await house.check(run_id, interruptions=MAX_STARTS)
