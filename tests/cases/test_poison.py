"""K01: records that nobody can read stop no partition, and none but the run in whose owner's name they stand."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition

from runfold.core.events import Reason, RunRequested, RunResumed, RunResumeRequested, RunSuspended, Status
from runfold.log.codec import Codec
from runfold.log.kafka.dead_letters import MOST_BYTES
from runfold.log.kafka.message import headers_of
from runfold.log.memory import MemoryCommands
from runfold.testing import Script
from tests.cases import engine_scene
from tests.cases.engine_scene import recording
from tests.cases.harness import Scene, scene

NOBODY = str(uuid4())
GOOD = Codec().encode(RunRequested(run_id=NOBODY, agent="default", input="go"))
POISON = {  # value, type header, problem
    "random bytes": (b"\xa5" + random.Random(64).randbytes(63), None, "MALFORMED"),
    "JSON": (b'{"type": "RunRequested", "input": "go"}', None, "MALFORMED"),
    "nothing": (b"", None, "MALFORMED"),
    "truncated": (GOOD[:-1], b"RunRequested", "MALFORMED"),
    "trailing bytes": (GOOD + b"x", b"RunRequested", "MALFORMED"),
    "another schema": (b"\xc3\x01" + b"unknown!" + GOOD[10:], None, "UNKNOWN_SCHEMA"),
    "another type": (b"\xc3\x01" + b"unknown!" + GOOD[10:], b"RunTeleported", "UNKNOWN_SCHEMA"),
    "a mistyped header": (GOOD, b"RunReqested", "MALFORMED"),
    "nonsense of another type": (b"x", b"RunTeleported", "MALFORMED"),
    "huge": (b"\xa5" * (2 * MOST_BYTES), None, "MALFORMED"),
}
KEYS = {"no key": None, "the id of no run": NOBODY.encode()}
TWO_STEPS = Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done")


def problems(key: str) -> list[str]:
    """What is wrong with each of them under this key."""
    return [problem if KEYS[key] else "NO_KEY" for _, _, problem in POISON.values()]


# ---- over the in-memory log


@pytest.mark.parametrize("key", KEYS)
async def test_poison_is_counted_and_buried_once_and_the_next_run_ends(key: str) -> None:
    """K01.1, K01.2"""
    async with engine_scene.stage(Script().then_text("done")) as stage:
        worker, partition = stage.start(), stage.broker.partitions[0]
        offsets = [stage.broker.put(0, KEYS[key], value, kind) for value, kind, _ in POISON.values()]
        assert (await stage.play("good")).status is Status.SUCCEEDED, "K01.1"
        async with asyncio.timeout(5):
            while partition.position.next <= offsets[-1]:
                await partition.changed.wait()
        for problem, count in Counter(problems(key)).items():
            assert worker.sample("runfold_unreadable_records_total", problem=problem) == count, "K01.2"
        worker = await stage.restart()
        assert (await stage.play("good, again")).status is Status.SUCCEEDED
        assert [letter.offset for letter in stage.broker.dead_letters] == offsets, "K01.2: the restart adds none"
        assert not any(worker.sample("runfold_unreadable_records_total", problem=problem) for problem in problems(key))


@pytest.mark.parametrize("value", [GOOD[:-1], b"", None], ids=["truncated", "nothing", "null"])
async def test_a_record_in_the_owners_name_suspends_its_run_until_a_person_skips_it(value: bytes | None) -> None:
    async with engine_scene.stage(TWO_STEPS) as stage:
        entered, gate = asyncio.Event(), asyncio.Event()

        async def wait(context: object) -> str:
            entered.set()
            await gate.wait()
            return "ok"

        stage.serve(recording(stage.ledger, "a", wait))
        stage.start()
        run_id = await stage.submit()
        await entered.wait()
        offset = stage.broker.put(0, run_id.encode(), value, b"ToolStepFinished", lane=b"an owner of old")
        stage.interruptions += 1  # the tool is aborted
        run = await stage.settled(run_id)
        assert (run.status, run.reason) == (Status.SUSPENDED, Reason.UNREADABLE_RECORD)
        assert f"0/{offset}" in run.detail
        assert (await stage.play("another", agent="nobody")).status is Status.FAILED, "other runs go on"
        await stage.restart()
        assert (await stage.play("and another", agent="nobody")).status is Status.FAILED
        assert len(stage.log(run_id, RunSuspended)) == 1, "once, also for the next owner"
        gate.set()
        await resume(stage, run_id)
        assert len(stage.log(run_id, RunResumed)) == 1
        await stage.restart()
        await stage.play("the last", agent="nobody")
        assert len(stage.log(run_id, RunSuspended)) == 1, "it is skipped for ever"
        assert [letter.offset for letter in stage.broker.dead_letters] == ([] if value is None else [offset])


async def resume(stage: engine_scene.Scene, run_id: str) -> None:
    await MemoryCommands(stage.broker).send(RunResumeRequested(run_id=run_id, command_id=str(uuid4()), requested_by="test"))
    await stage.until(run_id, lambda run: run.status.final)
    assert stage.notes.runs[run_id].status is Status.SUCCEEDED


async def test_what_anybody_may_have_written_touches_no_run() -> None:
    async with engine_scene.stage(TWO_STEPS) as stage:
        entered, gate = asyncio.Event(), asyncio.Event()

        async def wait(context: object) -> str:
            entered.set()
            await gate.wait()
            return "ok"

        stage.serve(recording(stage.ledger, "a", wait))
        stage.start()
        run_id = await stage.submit()
        await entered.wait()
        offset = stage.broker.put(0, run_id.encode(), GOOD[:-1], b"ToolStepFinished")
        await stage.notes.until(lambda: bool(stage.notes.unreadable_records))
        gate.set()
        assert (await stage.settled(run_id)).status is Status.SUCCEEDED
        await stage.quiet()
        assert [letter.offset for letter in stage.broker.dead_letters] == [offset]


# ---- on a real broker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    scripts = {"K01": TWO_STEPS, "": Script().then_text("done")}
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("poison"), scripts, partitions=1) as house:
        await house.start("worker-A")
        yield house


def buried(house: Scene) -> list[tuple[int, bytes, int]]:
    """What is in the dead-letter topic: offset, problem, bytes."""
    consumer = Consumer({"bootstrap.servers": house.settings.bootstrap, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(f"{house.settings.topic}.dead", 0, 0)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        headers = {name: value if isinstance(value, bytes) else b"" for name, value in headers_of(message)}
        assert headers["runfold-topic"] == house.settings.topic.encode()
        found.append((int(headers["runfold-offset"]), headers["runfold-problem"], len(message.value() or b"")))
    consumer.close()
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_poison_on_a_real_broker(house: Scene) -> None:
    """K01.1 to K01.3"""
    records = [(KEYS[key], value, kind) for key in KEYS for value, kind, _ in POISON.values()]
    places = [(await house.put(0, *record))[1] for record in records]
    wrong = [problem for key in KEYS for problem in problems(key)]
    good = await house.post("good")
    await house.ended(good, seconds=5)
    await house.read()  # K01.1: the committed offset passes it
    for problem, count in Counter(wrong).items():
        sample = f'runfold_unreadable_records_total{{problem="{problem}"}}'
        assert await house.processes.metric("worker-A", sample) == count, "K01.2"
    letters = [
        (place, problem.encode(), min(len(value), MOST_BYTES))
        for place, (_, value, _), problem in zip(places, records, wrong, strict=True)
    ]
    assert await asyncio.to_thread(buried, house) == letters, "K01.2"
    await house.processes.stop("worker-A")
    await house.projector.stop()
    house.projector.start()
    await house.start("worker-A")
    again = await house.post("good, again")
    await house.ended(again)
    await house.read()
    assert await asyncio.to_thread(buried, house) == letters, "K01.2: the restart adds none"
    await house.check(good, again)  # K01.3: tables, workers and the test's own fold agree


@pytest.mark.asyncio(loop_scope="module")
async def test_the_owners_own_record_on_a_real_broker(house: Scene) -> None:
    """Suspended, visible in SQL, resumed over HTTP."""
    house.world.hold("effect a")
    run_id = await house.post(f"K01 {uuid4()}")
    await house.held("effect a")
    _, offset = await house.put(0, run_id.encode(), GOOD[:-1], b"ToolStepFinished", lane=b"an owner of old:7")
    await house.at_last(run_id, "RunSuspended")
    await house.projected()
    row = (await house.rows())[run_id]
    assert (row["status"], row["reason"]) == ("SUSPENDED", "UNREADABLE_RECORD")
    assert f"0/{offset}" in row["detail"]
    house.world.release("effect a")
    assert (await house.ask("POST", f"/api/runs/{run_id}/resume", json={"detail": "seen"})).status_code == 202
    await house.ended(run_id)
    assert house.run(run_id).status is Status.SUCCEEDED
    assert house.kinds(run_id).count("RunSuspended") == 1
    assert house.executions(run_id) == ["1/toolu_a"] * 2, "under one key"
    await house.check(run_id, interruptions=1)
