"""K10: the broker is away for longer than a transaction may be open, and it is restarted in the middle of a commit.

Everything is shorter than in the case: transactions may be open for 3 s, the outage takes 4 s and what a broker needs to start.
Worker A's session ends meanwhile, so what it has in hand is lost; worker B's does not.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import ModelStepStarted, Status
from runfold.local import Kafka
from runfold.testing import Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_kafka import everything
from tests.cases.harness_processes import HELD, slowness

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNS = 10
PARTITIONS = 4
TRANSACTION_MS = 3000
OUTAGE_SECONDS = 4.0
SESSIONS_MS = {"worker-A": 2000, "worker-B": 30_000}
BACK_SECONDS = 60.0  # after the start, on an idle machine
RESET = "taking over again"
SCRIPTS = {
    "outage": Script().then_tool_use("toolu_a", "a", {}).after(OUTAGE_SECONDS).then_text("done"),
    "": Script().then_text("done"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kafka]:
    with await asyncio.to_thread(Kafka(tmp_path_factory.mktemp("broker")).__enter__) as broker:
        yield broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(kafka: Kafka, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(kafka.bootstrap, postgres, tmp_path_factory.mktemp("outage"), SCRIPTS, partitions=PARTITIONS) as house:
        starts = (
            house.start(name, entry=HELD, session_timeout_ms=session, transaction_timeout_ms=TRANSACTION_MS)
            for name, session in SESSIONS_MS.items()
        )
        await asyncio.gather(*starts)
        await house.until("each to own its half", lambda: len(owned(house, "worker-B")) == PARTITIONS // 2)
        yield house


def owned(house: Scene, name: str) -> list[int]:
    return [partition for partition in range(PARTITIONS) if house.leases() >= PARTITIONS and house.owner(partition) == name]


def resets(house: Scene, name: str) -> int:
    return sum(RESET in said for said in house.processes.messages(name))


async def test_an_outage_longer_than_a_transaction_costs_no_run(house: Scene, kafka: Kafka) -> None:
    """K10.1 to K10.3: V1. The broker is away for as long as the model needs for the answers that were asked for before."""
    kept, run_ids = owned(house, "worker-B"), [await house.post(f"outage {uuid4()}") for _ in range(RUNS - 1)]
    run_ids.append(await house.post_to(kept[0], f"outage {uuid4()}"))
    await house.model.until(lambda: asked(house) == RUNS, 20)
    await asyncio.to_thread(kafka.kill)
    await house.model.until(lambda: answered(house) == RUNS, OUTAGE_SECONDS + 20)
    await asyncio.to_thread(kafka.start)
    await house.ended(*run_ids, seconds=BACK_SECONDS * slowness())
    assert [house.run(one).status for one in run_ids] == [Status.SUCCEEDED] * RUNS, "K10.1"
    for one in run_ids:
        starts = [record.event for record in house.records(one) if isinstance(record.event, ModelStepStarted)]
        extra = sum(start.attempt > 1 for start in starts)
        assert extra <= 1, "K10.2"
        assert house.hits(one) == 2 + extra, "K10.2"
        assert not (extra and house.partition_of(one) in kept), "what is in hand when the session outlives the outage is kept"
    assert resets(house, "worker-B"), "K10.3: the one reset path"
    await house.check(*run_ids, interruptions=1)  # O10: nobody had to be started again


def asked(house: Scene) -> int:
    return sum(hit.conversation.startswith("outage") for hit in house.model.requests)


def answered(house: Scene) -> int:
    return sum(hit.complete or hit.aborted for hit in house.model.requests if hit.conversation.startswith("outage"))


async def test_a_broker_that_is_restarted_in_mid_commit_loses_nothing(house: Scene, kafka: Kafka) -> None:
    """K10.1 to K10.3: V2"""
    house.world.hold("committing RunFinished")
    partition, before = owned(house, "worker-B")[0], resets(house, "worker-B")
    run_id = await house.post_to(partition, f"in mid-commit {uuid4()}")
    await house.held("committing RunFinished")
    lease = house.epoch(partition)
    written = await asyncio.to_thread(everything, house.settings, house.settings.topic, partition, lease)
    assert written[-1].key() == run_id.encode(), "the end is in the broker and not committed"
    assert "RunFinished" not in house.kinds(run_id)
    await asyncio.to_thread(kafka.kill)
    house.world.release("committing RunFinished")
    began = time.monotonic()
    await asyncio.to_thread(kafka.start)
    await house.ended(run_id, seconds=BACK_SECONDS * slowness())
    assert house.run(run_id).status is Status.SUCCEEDED, "K10.1"
    assert time.monotonic() - began < BACK_SECONDS * slowness(), "K10.1"
    assert house.hits(run_id) == 1, "K10.2: the answer was in hand"
    await house.until("a new lease", lambda: house.epoch(partition) > lease)  # K10.3: whatever the outcome was, it is settled so
    assert resets(house, "worker-B") > before, "K10.3: through the one reset path"
    await house.check_all(interruptions=1)
