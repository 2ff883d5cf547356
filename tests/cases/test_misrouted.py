"""K07: another client hashes differently, or writes a key that is missing or wrong. The run it meant does not suffer."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import RunCancelRequested, Status, ToolStatus, ToolStepFinished
from runfold.log.codec import Codec, record_type
from runfold.log.kafka import KafkaTail
from runfold.log.partitioner import partition_of
from runfold.testing import Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_kafka import dead_letters, placed

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTITIONS = 12
IDS = 1000
Wrong = RunCancelRequested | ToolStepFinished
SCRIPTS = {"K07": Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done"), "": Script().then_text("done")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("misrouted"), SCRIPTS, partitions=PARTITIONS) as house:
        await house.start("worker-A")
        yield house


async def counted(house: Scene, problem: str) -> float:
    return await house.processes.metric("worker-A", f'runfold_unreadable_records_total{{problem="{problem}"}}')


async def test_all_agree_where_a_run_lives(house: Scene) -> None:
    """K07.1: V1. A client of another language, the API's and the command line's way to write and to read, and the worker."""
    before = await counted(house, "MISROUTED")
    ids = [str(uuid4()) for _ in range(IDS)]
    theirs = await asyncio.to_thread(placed, house.settings, [id_.encode() for id_ in ids], "murmur2_random")
    commands = [RunCancelRequested(run_id=id_, command_id="none", requested_by="test") for id_ in ids]
    written = await asyncio.gather(*map(house.produce, commands))
    tail = await KafkaTail.open(house.settings, Codec())
    for id_, (partition, _) in zip(ids, written, strict=True):
        wanted = theirs[id_.encode()]
        assert (partition, tail.partition_of(id_), partition_of(id_.encode(), PARTITIONS)) == (wanted, wanted, wanted), id_
    assert len(theirs) == IDS
    await tail.close()
    await house.read()
    assert await counted(house, "MISROUTED") == before, "K07.1: the worker finds none that is not at home"


async def test_a_record_in_the_wrong_place_or_under_the_wrong_key_is_kept_aside(house: Scene) -> None:
    """K07.2, K07.3: V2 to V5"""
    house.world.hold("effect a")
    run_id = await house.post(f"K07 {uuid4()}")
    await house.held("effect a")
    await house.at_last(run_id, "ToolStepStarted")
    home = house.partition_of(run_id)
    elsewhere, before, leases = (home + 1) % PARTITIONS, len(house.records(run_id)), house.leases()
    cancel = RunCancelRequested(run_id=run_id, command_id=str(uuid4()), requested_by="a client that hashes differently")
    finished = ToolStepFinished(
        run_id=run_id, epoch=house.epoch(elsewhere), seq=2, model_seq=1, tool_use_id="toolu_a", attempt=1,
        status=ToolStatus.DONE, content_json='"forged"', latency_ms=1,
    )  # fmt: skip
    other = house.id_on(home)
    places: list[tuple[int, bytes | None, Wrong, str]] = [
        (elsewhere, run_id.encode(), cancel, "MISROUTED"),  # V2
        (home, None, cancel, "NO_KEY"),  # V3
        (home, other.encode(), cancel, "WRONG_KEY"),  # V4
        (elsewhere, run_id.encode(), finished, "MISROUTED"),  # V5
    ]
    counts = {problem: await counted(house, problem) for _, _, _, problem in places}
    wanted = [(*await put(house, partition, key, event), problem) for partition, key, event, problem in places]
    good = [await house.post_to(partition, f"good {uuid4()}") for partition in (home, elsewhere)]
    await house.ended(*good)
    await house.read()  # the offsets pass them
    assert len(house.records(run_id)) == before, "K07.2, K07.3: not one of them was applied"
    house.world.release("effect a")
    await house.ended(run_id)

    run = house.run(run_id)
    assert (run.status, run.output) == (Status.SUCCEEDED, "done"), "K07.2, K07.3: the run is unaffected"
    assert "forged" not in str(run.messages)
    assert house.executions(run_id) == ["1/toolu_a"], "K07.2: no second owner"
    assert house.leases() == leases
    letters = await asyncio.to_thread(dead_letters, house.settings, PARTITIONS)
    assert sorted(letters) == sorted(wanted), "K07.2, K07.3: each once, and nothing else"
    for problem, count in counts.items():
        added = sum(problem == each for _, _, _, each in places)
        assert await counted(house, problem) == count + added, "K07.2, K07.3: counted"
    await house.check(run_id, *good)


async def put(house: Scene, partition: int, key: bytes | None, event: Wrong) -> tuple[int, int]:
    return await house.put(partition, key, Codec().encode(event), record_type(event))
