"""What a worker writes beside the runs' own events, snapshots and markers, never makes the next takeover longer or wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from runfold.core.errors import LogUnavailable
from runfold.core.events import OwnerEvent, RunCancelRequested, RunSnapshotted
from runfold.core.shard import OVERLAP
from runfold.worker import carrier
from runfold.worker.flow import Flow
from tests.engine import Engine
from tests.unit.worker_stage import Held, Stage, holding_model, staged


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


# ---- snapshots


async def test_a_snapshot_that_a_command_overtook_is_passed_over(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes nothing: neither is what was planned beside it planned once more."""
    for name, value in {"BEHIND": 3, "FACTOR": 0, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(carrier, name, value)
    due = carrier.Carrier.due

    def overtaken(*state: Any) -> Iterator[tuple[Flow, RunSnapshotted]]:
        for flow, snapshot in due(*state):
            cancel = RunCancelRequested(run_id=flow.run.id, command_id="c", requested_by="test")
            stage.broker.put(0, flow.run.id.encode(), stage.broker.codec.encode(cancel))
            yield flow, snapshot

    monkeypatch.setattr(carrier.Carrier, "due", overtaken)
    held = Held()
    engine = await stage.owner(holding_model(held))
    id_ = await stage.request()
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    await engine.notes.until(lambda: engine.worker.partitions[0].lane.idle)
    names = [type(event).__name__ for event in stage.log()]
    assert "RunSnapshotted" in names
    assert names.count("RunFinished") == 1
    assert names.index("RunCancelRequested") < names.index("RunSnapshotted")


# ---- takeovers


async def test_a_takeover_that_dies_at_once_does_not_make_the_next_one_longer(stage: Stage) -> None:
    """Where folding must start never goes backwards, however often a worker dies right after its marker."""
    stage.broker.partitions[0].position = type(stage.broker.partitions[0].position)(5 * OVERLAP, 4 * OVERLAP)
    stage.broker.partitions[0].end = 5 * OVERLAP
    lows = []
    for _ in range(5):
        marker_committed = asyncio.Event()

        async def after(partition: int, events: Sequence[OwnerEvent], told: asyncio.Event = marker_committed) -> None:
            told.set()
            await asyncio.Event().wait()

        stage.broker.after_commit = after
        engine = stage.engine()
        engine.grant([0], stage.proof)
        await marker_committed.wait()
        await engine.close()
        lows.append(stage.broker.partitions[0].position.low)
    assert lows == sorted(lows)
    assert lows[0] >= 4 * OVERLAP


async def test_a_reset_counts_no_record_twice(stage: Stage) -> None:
    """What `Observer.acquired` says was folded: all of it at the first takeover, nothing at one that only mends the lane."""
    folded: list[int] = []
    for _ in range(3):
        await stage.request(agent="nobody")
    engine = stage.engine()
    engine.notes.acquired = _telling(engine, folded)  # type: ignore[method-assign, assignment]
    engine.grant([0], stage.proof)
    await engine.notes.until(lambda: len(engine.notes.ended) == 3)
    once = iter([LogUnavailable("no answer")])

    async def before(partition: int, events: Sequence[OwnerEvent]) -> None:
        for error in once:
            raise error

    stage.broker.before_commit = before
    await stage.request(agent="nobody")
    await engine.notes.until(lambda: len(engine.notes.ended) == 4)
    assert folded == [4, 0], "three requests and the marker"


def _telling(engine: Engine, folded: list[int]) -> Callable[[int, int, int, float], None]:
    told = engine.notes.acquired

    def acquired(partition: int, epoch: int, records: int, seconds: float) -> None:
        folded.append(records)
        told(partition, epoch, records, seconds)

    return acquired
