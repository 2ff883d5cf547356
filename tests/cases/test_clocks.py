"""S07: workers whose clocks disagree take turns at the same runs. Only the broker's clock counts.

One partition, so one owner at a time: a right clock, then one that is 10 minutes fast and one that is 10 minutes slow, then a
right one again. A worker lets go when its answers are still to come, so that each step is of the next one.
"""

import time
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import LeaseAcquired, ModelStepStarted, Status, ToolStepStarted
from runfold.testing import Script
from tests.cases.harness import START_SECONDS, Scene, scene
from tests.cases.harness_clock import CLOCK, OFF
from tests.cases.harness_processes import APP

pytestmark = pytest.mark.asyncio(loop_scope="module")

Started = ModelStepStarted | ToolStepStarted
WRONG = 600.0  # seconds
TIMEOUTS = {"V1, V2": 3600, "V3": 300}  # seconds of the runs; V3's would have passed by the fast clock
TURNS = ("second", "third", "fourth")  # answers that wait until somebody else owns the run


def script() -> Script:
    calls = Script().then_tool_use("toolu_0", "a", {})
    for number, turn in enumerate(TURNS[:-1], 1):
        calls = calls.then_tool_use(f"toolu_{number}", "a", {"n": number}).held(turn)
    return calls.then_text("done").held(TURNS[-1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("clocks"), script(), partitions=1) as house:
        employ(house, "right", 0)
        await house.until("it to own the partition", lambda: house.leases("right"), START_SECONDS)
        yield house


def employ(house: Scene, name: str, off: float) -> None:
    """A worker that lets go at once: what it waits for is asked for again."""
    environment = {OFF: str(off), "RUNFOLD_DRAIN_SECONDS": "0"}
    house.processes.start(name, entry=CLOCK, app=APP, environment=environment)


async def test_only_the_brokers_clock_counts(house: Scene) -> None:
    """S07.1, S07.2"""
    began = time.time()
    employ(house, "fast", WRONG)
    employ(house, "slow", -WRONG)
    run_ids = [await house.post(f"S07 {name} {uuid4()}", timeoutSeconds=seconds) for name, seconds in TIMEOUTS.items()]
    owners = [house.owner(0)]
    for number, turn in enumerate(TURNS, 2):
        await house.until(f"turn {number} to be asked for", lambda: all(waits(house, one, number) for one in run_ids))  # noqa: B023
        owner = house.owner(0)
        if len(owners) == 2:
            employ(house, "right again", 0)
        await house.processes.stop(owner)
        await house.until("the next to own the partition", lambda: house.owner(0) != owner, START_SECONDS)  # noqa: B023
        owners.append(house.owner(0))
        house.model.release(turn)
    await house.ended(*run_ids)
    assert {"fast", "slow"} <= set(owners), owners
    assert len(set(owners)) == len(owners), "each step was somebody else's"
    assert [house.run(one).status for one in run_ids] == [Status.SUCCEEDED] * len(run_ids), "S07.1"
    written = [record for record in house.records() if record.offset > 0]
    assert all(began - 60 < record.timestamp / 1000 < time.time() + 60 for record in written), "S07.1: stamped by the broker"
    for run_id, seconds in zip(run_ids, TIMEOUTS.values(), strict=True):
        run = house.run(run_id)
        assert run.deadline == run.requested_at + seconds * 1000, "S07.1"
        assert house.kinds(run_id).count("StepAborted") == len(TURNS), "the log knows why calls were made again"
        await in_order(house, run_id)
    await house.check(*run_ids, interruptions=len(TURNS))
    await house.read()


def waits(house: Scene, run_id: str, turn: int) -> bool:
    """Whether the newest owner asks the model for this turn."""
    records = house.records(run_id)
    tools = sum(isinstance(record.event, ToolStepStarted) for record in records)
    return tools >= turn - 1 and house.kinds(run_id)[-1] == "ModelStepStarted" and records[-1].offset > reign(house)


def reign(house: Scene) -> int:
    """Where the owner first took over. It does so again when others join or leave, and goes on with what it has in hand."""
    begin, owner = -1, ""
    for record in house.records():
        if isinstance(record.event, LeaseAcquired) and record.event.worker != owner:
            begin, owner = record.offset, record.event.worker
    return begin


async def in_order(house: Scene, run_id: str) -> None:
    """S07.2"""
    await house.projected()
    steps = (await house.ask("GET", f"/api/runs/{run_id}/timeline")).json()
    assert [step["seq"] for step in steps] == list(range(1, 2 * len(TURNS) + 2))
    begun = {record.event.seq: record.offset for record in house.records(run_id) if isinstance(record.event, Started)}
    assert [step["seq"] for step in steps] == sorted(begun, key=begun.__getitem__), "S07.2: ordered by offset"
    for step in steps:
        assert step["latencyMs"] >= 0, "S07.2"
        assert datetime.fromisoformat(step["finishedAt"]) >= datetime.fromisoformat(step["startedAt"]), "S07.2"
