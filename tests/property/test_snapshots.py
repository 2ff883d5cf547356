"""A fold that begins at a snapshot knows what the whole fold knows, wherever snapshots were taken and commands fell."""

import json
import random
from dataclasses import replace

import pytest

from runfold.core import snapshot
from runfold.core.events import Command, LeaseAcquired, Record, RunCancelRequested, RunSnapshotted
from runfold.core.run import Run
from runfold.core.shard import Ignored, Shard
from tests.replay.golden_log import LOGS, read_log


def records() -> list[Record]:
    """The newest golden log's first partition, less its own snapshots."""
    log = read_log(sorted(LOGS.glob("*.jsonl"))[-1].read_text())
    return [record for record in log if record.partition == 0 and not isinstance(record.event, RunSnapshotted)]


def with_snapshots(log: list[Record], dice: random.Random) -> list[Record]:
    """Snapshots at random places, each of the state some records before it: what was appended while a command came in."""
    shard, out, offset = Shard(0), list[Record](), 0

    def put(record: Record) -> None:
        nonlocal offset
        moved = replace(record, offset=offset)
        out.append(moved)
        offset += 1
        shard.apply(moved)

    epochs: dict[int, int] = {}
    late: list[RunSnapshotted] = []
    for record in log:
        event = record.event
        if isinstance(event, LeaseAcquired):
            epochs[record.offset] = offset
        elif not isinstance(event, Command):
            event = replace(event, epoch=epochs[event.epoch])
        put(replace(record, event=event))
        if isinstance(event, Command) or dice.random() < 0.5:
            owned = list(shard.runs.values()) if shard.epoch >= 0 else []
            late += [_snapshot(run, shard.epoch) for run in owned if dice.random() < 0.3]
            if dice.random() < 0.3 and shard.runs:
                run_id = dice.choice(list(shard.runs))
                put(Record(RunCancelRequested(run_id=run_id, command_id=f"c{offset}", requested_by="dice"), 0, offset, 1))
        for event in [each for each in late if each.epoch == shard.epoch and _may_follow(each, shard, dice)]:
            late.remove(event)
            put(Record(event, 0, offset, record.timestamp))
    return out


def _may_follow(event: RunSnapshotted, shard: Shard, dice: random.Random) -> bool:
    """An owner appends nothing of its own between a run's snapshot and that run's other events; only commands slip in."""
    run = shard.runs.get(event.run_id)
    return run is not None and dice.random() < 0.7


def _snapshot(run: Run, epoch: int) -> RunSnapshotted:
    return RunSnapshotted(
        run_id=run.id, epoch=epoch, last_offset=run.last_offset, state_version=snapshot.VERSION, state_json=snapshot.to_text(run)
    )


def fold(log: list[Record], start: int) -> Shard:
    shard = Shard(0)
    for record in log:
        if record.offset >= start:
            shard.apply(record)
    return shard


@pytest.mark.parametrize("seed", range(60))
def test_a_fold_from_the_low_watermark_equals_the_fold_from_the_beginning(seed: int) -> None:
    dice = random.Random(seed)
    log = with_snapshots(records(), dice)
    carried = 0
    for end in range(1, len(log) + 1, 3):
        whole = fold(log[:end], 0)
        low = min((run.fold_from for run in whole.runs.values()), default=end)
        part = fold(log[:end], low)
        assert {id_: part.runs.get(id_) for id_ in whole.runs} == whole.runs, f"seed {seed}, end {end}, low {low}"
        carried += sum(run.fold_from > run.first_offset for run in whole.runs.values())
    assert carried, f"seed {seed}: no snapshot ever moved a run"


def test_a_snapshot_that_a_command_overtook_moves_nothing() -> None:
    log = records()
    shard = fold(log, 0)
    run = next(iter(shard.runs.values()))
    old = _snapshot(run, shard.epoch)
    end = log[-1].offset + 1
    shard.apply(Record(RunCancelRequested(run_id=run.id, command_id="x", requested_by="test"), 0, end, 1))
    assert shard.apply(Record(old, 0, end + 1, 1)) is Ignored.REPEATED
    assert shard.runs[run.id].fold_from == run.fold_from
    assert shard.runs[run.id].inbox


def test_a_state_survives_its_text() -> None:
    for run in fold(records(), 0).runs.values():
        assert snapshot.from_text(Run, snapshot.to_text(run)) == run


FORGED = [
    "",
    "[]",
    "{}",
    "[" * 100_000,
    '{"request": 5}',
    '{"cost": "much"}',
    '{"cost": {}}',
    '{"messages": "m"}',
    '{"partition": null}',
]


@pytest.mark.parametrize("state", FORGED, ids=lambda state: state[:20])
def test_a_snapshot_that_no_owner_wrote_changes_nothing_and_stops_nobody(state: str) -> None:
    shard, run_id = Shard(0), "6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e10"
    shard.apply(Record(LeaseAcquired(partition=0, worker="w", build="b"), 0, 0, 1))
    forged = RunSnapshotted(run_id=run_id, epoch=0, last_offset=0, state_version=snapshot.VERSION, state_json=state)
    assert shard.apply(Record(forged, 0, 1, 1)) is Ignored.ORPHAN
    assert shard.runs == {}


WRONG = [{"last_offset": "7"}, {"cost": 0}, {"messages": [7]}, {"status": "DEAD"}, {"step": {"seq": "1"}}, {"partition": None}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_field_of_another_type_makes_it_no_snapshot(wrong: dict[str, object]) -> None:
    shard = Shard(0)
    run = next(run for run in map(shard.apply, records()) if isinstance(run, Run) and run.messages)
    assert snapshot.from_text(Run, snapshot.to_text(run)) == run
    with pytest.raises(ValueError, match=r"expected|DEAD"):
        snapshot.from_text(Run, json.dumps(json.loads(snapshot.to_text(run)) | wrong))
