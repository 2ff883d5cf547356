"""Z01: a step that is longer than the poll interval holds up neither the group nor the other runs of its partition.

Everything is half as long as in the case: a session and a poll interval of 3 s, a step of 10 s.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import Status
from runfold.testing import Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_kafka import members
from tests.cases.harness_processes import slowness

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTERVAL_MS = 3000
STEP_SECONDS = 10.0
ACTED_ON_SECONDS = 2.0  # on an idle machine
SCRIPTS = {"Z01": Script().then_text("done").after(STEP_SECONDS)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("long"), SCRIPTS, partitions=2) as house:
        kafka = json.dumps({"max.poll.interval.ms": INTERVAL_MS})
        await house.start("worker-A", "worker-B", session_timeout_ms=INTERVAL_MS, kafka=kafka)
        yield house


async def test_a_step_longer_than_the_poll_interval_holds_nobody_up(house: Scene) -> None:
    """Z01.1 to Z01.3"""
    seats, leases = await asyncio.to_thread(members, house.settings), house.leases()
    first = await house.post(f"Z01 first {uuid4()}")
    await house.until("the step to be under way", lambda: house.kinds(first)[-1:] == ["ModelStepStarted"])

    began = time.monotonic()
    second = await house.post_to(house.partition_of(first), f"Z01 second {uuid4()}")
    await house.until("the request to be acted on", lambda: "ModelStepStarted" in house.kinds(second))
    assert time.monotonic() - began < ACTED_ON_SECONDS * slowness(), "Z01.2"

    began = time.monotonic()
    assert (await house.ask("POST", f"/api/runs/{second}/cancel")).status_code == 202
    await house.ended(second)
    assert time.monotonic() - began < ACTED_ON_SECONDS * slowness(), "Z01.2"
    assert "ModelStepCompleted" not in house.kinds(first), "the step of the first run is still under way"

    await house.ended(first, seconds=STEP_SECONDS + 20)
    assert (house.run(first).status, house.run(second).status) == (Status.SUCCEEDED, Status.CANCELLED), "Z01.3"
    assert house.hits(first) == 1, "Z01.1"
    assert house.leases() == leases, "Z01.1: no partition moves"
    assert await asyncio.to_thread(members, house.settings) == seats, "Z01.1: nobody had to join anew"
    for name in house.processes.names:
        assert not [said for said in house.processes.messages(name) if "poll" in said.lower()], "Z01.1"
    await house.check_all()
