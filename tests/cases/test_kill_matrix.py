"""R01: kill -9 at every point of a run of two model steps. Whatever the point, the log ends up as if nothing had happened.

Two keepers, each of which replaces its worker at once; and at last one that dies with its worker, so that the other takes over.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition

from runfold.core.events import (
    ModelStepCompleted,
    ModelStepStarted,
    Record,
    Status,
    ToolStepStarted,
)
from runfold.log.kafka.message import raw_record
from tests.cases.harness import Scene
from tests.cases.harness_world import Visit

pytestmark = pytest.mark.asyncio(loop_scope="package")

KEY = "1/toolu_a"



@dataclass(frozen=True)
class Point:
    """Where a worker is held until it is killed, what the log of the run ends with then, and what the whole may cost."""

    place: str
    last: str
    hits: int = 2
    executions: int = 1
    split: str = ""  # a place before it where the transaction is to end


POINTS = {
    "KP0": Point("before RunStarted", "RunRequested"),
    "KP0, step started": Point("call model 1", "ModelStepStarted"),
    "KP1": Point("model 1 answered", "ModelStepStarted", hits=3),
    "KP2": Point("after ModelStepCompleted 1", "ModelStepCompleted"),
    "KP3": Point("call tool a", "ToolStepStarted"),
    "KP4": Point("effect a", "ToolStepStarted", executions=2),
    "KP4, result in hand": Point("tool a returned", "ToolStepStarted", executions=2),
    "KP5": Point("after ToolStepFinished 2", "ToolStepFinished"),
    "KP5, step started": Point("call model 3", "ModelStepStarted"),
    "KP6": Point("after ModelStepCompleted 3", "ModelStepCompleted"),
    "KP7": Point("committing RunFinished", "ModelStepCompleted", split="after ModelStepCompleted 3"),
    # group commit: the answer and the end are usually one transaction, so that what dies here is KP1 of the last step
    "KP7, with its answer": Point("committing RunFinished", "ModelStepStarted", hits=3),
    "KP8": Point("after RunFinished", "RunFinished"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def uninterrupted(shared: Scene) -> list[dict[str, Any]]:
    """The log of a run that nobody disturbs."""
    run_id = await shared.post("R01 undisturbed")
    await shared.ended(run_id)
    await shared.check(run_id)
    return outline(shared.records(run_id))


def outline(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What must not depend on who died when (R01.2): without attempts that died, and what differs between any two runs."""
    starts = [record.event for record in records if isinstance(record.event, ModelStepStarted | ToolStepStarted)]
    last = {event.seq: event for event in starts}
    died = [event for event in starts if event is not last[event.seq]]
    return [_lasting(record) for record in records if record.event not in died]


def _lasting(record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(record.event)
    differing = {"run_id", "epoch", "attempt", "deadline", "prefix_digest", "latency_ms", "message_id", "request_id"}
    kept = {name: value for name, value in fields.items() if name not in differing}
    text = re.sub(r"nonce-\d+", "nonce", repr(kept)).replace(fields["run_id"], "<run>")
    return {"type": type(record.event).__name__, "fields": re.sub(r"'input': '.*?'", "", text)}


async def held_at(stage: Scene, name: str, partition: int | None = None) -> tuple[str, Visit]:
    """A new run whose worker is held at a point, as its log bears out; what to kill."""
    point = POINTS[name]
    stage.world.hold(point.place, *filter(None, [point.split]))
    run_id = await stage.post_to(partition, f"R01 {name} {uuid4()}")
    if point.split:
        await stage.held(point.split)
        stage.world.release(point.split)
    visit = await stage.held(point.place)
    await stage.until(f"{point.last} to be last in the log", lambda: stage.kinds(run_id)[-1:] == [point.last])
    if point.place == "committing RunFinished":
        assert uncommitted(stage, run_id)[-1] == b"RunFinished"
    return run_id, visit


def uncommitted(stage: Scene, run_id: str) -> list[bytes | None]:
    """The types of a run's records that are in the log, committed or not."""
    partition, found = stage.partition_of(run_id), []
    settings = {"bootstrap.servers": stage.settings.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings | {"isolation.level": "read_uncommitted", "enable.partition.eof": True})
    consumer.assign([TopicPartition(stage.settings.topic, partition, 0)])
    while (message := consumer.poll(10)) is not None and message.error() is None:
        if message.key() == run_id.encode():
            found.append(raw_record(message).type_header)
    consumer.close()
    return found


async def judge(stage: Scene, run_id: str, name: str, uninterrupted: list[dict[str, Any]]) -> None:
    """The five assertions of R01, and all oracles."""
    point, records, run = POINTS[name], stage.records(run_id), stage.run(run_id)
    assert (run.status, stage.kinds(run_id).count("RunFinished")) == (Status.SUCCEEDED, 1), "R01.1"
    assert outline(records) == uninterrupted, "R01.2"
    assert stage.hits(run_id) == point.hits, "R01.3"
    assert stage.executions(run_id) == [KEY] * point.executions, "R01.4"
    (answer,) = (event for record in records if isinstance(event := record.event, ModelStepCompleted) and event.seq == 3)
    assert answer.request_id is not None
    assert run.output == f"The nonce is {answer.request_id.replace('req_', 'nonce-')}.", "R01.5"
    await stage.check(run_id, interruptions=1)
    assert (await stage.ask("GET", f"/api/runs/{run_id}")).json()["output"] == run.output, "R01.5"


@pytest.mark.parametrize("name", POINTS)
async def test_a_worker_killed_at_any_point_changes_nothing(stage: Scene, uninterrupted: list[dict[str, Any]], name: str) -> None:
    """R01.1 to R01.5: the keeper starts the next worker."""
    if name == "KP8":
        await stage.projector.stop()
    run_id, visit = await held_at(stage, name)
    leases = stage.leases()
    stage.processes.kill_worker(visit.pid)
    await stage.ended(run_id)
    await stage.until("the next worker to own the partition", lambda: stage.leases() > leases)
    if name == "KP8":
        stage.projector.start()
    await judge(stage, run_id, name, uninterrupted)


async def test_another_worker_takes_over_from_a_machine_that_is_lost(pair: Scene, uninterrupted: list[dict[str, Any]]) -> None:
    """R01.1 to R01.5, at KP4 and at KP7 of two runs of one partition: the keeper dies with its worker."""
    in_a_tool, _ = await held_at(pair, "KP4")
    partition = pair.partition_of(in_a_tool)
    at_its_end, visit = await held_at(pair, "KP7", partition)
    lost = pair.owner(partition)
    pair.processes.kill_both(lost, visit.pid)
    await pair.ended(in_a_tool, at_its_end)
    assert pair.owner(partition) != lost
    await judge(pair, in_a_tool, "KP4", uninterrupted)
    await judge(pair, at_its_end, "KP7", uninterrupted)
