"""K05: whatever a partition ends with, a takeover comes to its end, and nobody is behind.

Partition 0 ends with a commit marker, 1 with an aborted transaction after data, 2 is empty, 3 holds nothing but an aborted one.
"""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from runfold.cli.wiring.projector import project
from runfold.core.events import RunCancelRequested, Status
from runfold.log.codec import TYPE_HEADER, Codec, record_type
from runfold.log.kafka.message import Headers
from runfold.testing import Script
from tests.cases.harness import POLL_SECONDS, Scene, scene
from tests.cases.harness_kafka import committed_offsets, everything, transact
from tests.cases.harness_processes import Background, free_port, slowness

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = 4
TAKEOVER_SECONDS = 5.0
LAG = "runfold_projection_lag_records"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """No worker; the partitions end as said above."""
    script = Script().then_tool_use("toolu_a", "a", {}).then_text("done")
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("ends"), script, partitions=PARTITIONS) as house:
        await write(house, 0, commit=True)
        await house.put(1, house.id_on(1).encode(), None)
        await write(house, 1, commit=False)
        await write(house, 3, commit=False)
        yield house


async def write(house: Scene, partition: int, *, commit: bool) -> None:
    """A command for a run that does not exist, in a transaction."""
    event = RunCancelRequested(run_id=house.id_on(partition), command_id="none", requested_by="test")
    headers: Headers = [(TYPE_HEADER, record_type(event))]
    key, value = event.run_id.encode(), Codec().encode(event)
    await asyncio.to_thread(transact, house.settings, partition, key, value, headers, commit=commit)


async def until_level(house: Scene, url: str) -> None:
    """Wait until the projector says that it has read everything."""
    async with httpx.AsyncClient() as client, asyncio.timeout(TAKEOVER_SECONDS * slowness()):
        while f"{LAG} 0.0" not in (text := (await client.get(url)).text).splitlines():
            assert LAG in text
            await asyncio.sleep(POLL_SECONDS)


async def test_a_takeover_ends_at_any_end(house: Scene) -> None:
    """K05.1 to K05.3"""
    await house.projector.stop()
    settings = house.settings.model_copy(update={"metrics_port": free_port()})
    house.projector = Background(lambda stop: project(settings, "public", stop))
    house.projector.start()
    url = f"http://{settings.host}:{settings.metrics_port}/metrics"
    await until_metrics(house, url)
    await until_level(house, url)  # K05.2
    for partition in range(PARTITIONS):
        async with asyncio.timeout(TAKEOVER_SECONDS * slowness()):
            answer = await house.ask("GET", f"/api/runs/{house.id_on(partition)}")
        assert answer.status_code == 404, "K05.2: the end of the log is found, and no such run"

    await house.start("worker-A")
    await house.until("it to own all", lambda: house.leases("worker-A") == PARTITIONS)
    await taken_over(house)
    for partition in range(PARTITIONS):
        run_id = await house.post_to(partition, f"K05 {uuid4()}")
        answer = await house.ask("GET", f"/api/runs/{run_id}")
        assert (answer.status_code, answer.json()["id"]) == (200, run_id), "K05.2"
        await house.ended(run_id)
        assert house.run(run_id).status is Status.SUCCEEDED
    await until_level(house, url)  # K05.2
    await house.check_all()
    await offsets_are_of_records(house)


async def until_metrics(house: Scene, url: str) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while True:
            try:
                if LAG in (await client.get(url)).text:
                    return
            except httpx.ConnectError:
                await asyncio.sleep(POLL_SECONDS)


async def taken_over(house: Scene) -> None:
    """K05.1: the worker's own measure says how long each takeover took."""
    async with asyncio.timeout(TAKEOVER_SECONDS * slowness()):
        while await house.processes.metric("worker-A", "runfold_takeover_seconds_count") < PARTITIONS:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    quick = await house.processes.metric("worker-A", 'runfold_takeover_seconds_bucket{le="5.0"}')
    assert quick == PARTITIONS, "K05.1: all four within 5 s"


async def offsets_are_of_records(house: Scene) -> None:
    """K05.3"""
    committed = await asyncio.to_thread(committed_offsets, house.settings)
    assert set(committed) == set(range(PARTITIONS))
    for partition, offsets in committed.items():
        visible = await asyncio.to_thread(
            everything, house.settings, house.settings.topic, partition, isolation="read_committed"
        )
        after = {0} | {(message.offset() or 0) + 1 for message in visible}
        assert not [offset for offset in offsets if offset not in after], "K05.3: one behind a record that was read"
        assert offsets == sorted(offsets), "K05.3: never backwards"
        assert offsets[-1] > 1
