"""Z06: partitions that were lost are not partitions that are let go: their former owner writes nothing, and joins again.

Range, the assignment that takes everything from everybody first, cannot be had: a worker that is told to use it does not start
(tests/unit/test_kafka_settings.py).
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import LeaseAcquired, Status
from runfold.log.codec import Codec
from runfold.testing import Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_kafka import assignor, everything
from tests.cases.harness_processes import lines

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = 4
SESSION_MS = 2000
SCRIPTS = {
    "two sessions": Script().then_text("done").after(2 * SESSION_MS / 1000),
    "": Script().then_text("done"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("lost"), SCRIPTS, partitions=PARTITIONS) as house:
        await house.start("worker-A", "worker-B", session_timeout_ms=SESSION_MS)
        yield house


def owned(house: Scene, name: str) -> set[int]:
    return {partition for partition in range(PARTITIONS) if house.owner(partition) == name}


async def test_a_frozen_worker_that_lost_its_partitions_wakes_up_and_writes_nothing(house: Scene) -> None:
    """Z06.1 to Z06.3"""
    assert await asyncio.to_thread(assignor, house.settings) == "cooperative-sticky", "V2"
    await house.until("both to own two", lambda: len(owned(house, "worker-A")) == len(owned(house, "worker-B")) == 2)
    lost = owned(house, "worker-A")
    await house.read()  # nothing is in flight

    house.processes.signal("worker-A", signal.SIGSTOP)
    await house.until("the other to take over", lambda: owned(house, "worker-B") == set(range(PARTITIONS)), 60)
    waited = await house.post_to(min(lost), f"two sessions {uuid4()}")
    await house.ended(waited, seconds=60)
    await house.read()
    ends, leases = await house.ends(), house.leases("worker-A")
    house.processes.signal("worker-A", signal.SIGCONT)
    await house.until("it to own partitions again", lambda: house.leases("worker-A") > leases, 60)  # Z06.1: it joins again
    await house.until("both to own two", lambda: len(owned(house, "worker-A")) == len(owned(house, "worker-B")) == 2)

    for partition in lost:
        codec = Codec()
        for message in await asyncio.to_thread(everything, house.settings, house.settings.topic, partition, ends[partition]):
            event = codec.decode(message.value() or b"")
            assert isinstance(event, LeaseAcquired), f"Z06.1: {event} was written by the former owner"
            assert event.worker == house.owner(partition), "Z06.1: and it took nothing that it was not given"

    later = [await house.post_to(partition, f"later {uuid4()}") for partition in range(PARTITIONS)]
    await house.ended(*later)
    assert [house.run(one).status for one in later] == [Status.SUCCEEDED] * PARTITIONS, "Z06.2"
    for name, log in house.processes.logs.items():
        traces = [line for line in lines(log) if "stack_trace" in line]
        assert not traces, f"Z06.3: {name}: {traces}"
        assert not [said for said in house.processes.messages(name) if "although letting go failed" in said], "Z06.3"
    await house.check_all()  # O10: nobody had to be replaced
