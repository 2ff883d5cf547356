"""When an old open run is carried forward: too many records behind the head, or too many bytes (`runfold.worker.carrier`)."""

import json
from dataclasses import replace
from uuid import uuid4

import pytest

from runfold.core.events import Record, RunRequested
from runfold.core.shard import Shard
from runfold.testing import given
from runfold.testing.given import History, tool_use
from runfold.worker import carrier
from runfold.worker.carrier import BEHIND, BEHIND_BYTES, Carrier
from runfold.worker.flow import Flow


class Past:
    """A partition with one open run at offset 0, and whatever came after it."""

    def __init__(self) -> None:
        self.shard, self.carrier = Shard(0), Carrier()
        run = self.shard.apply(Record(RunRequested(run_id=str(uuid4()), agent="a", input="go"), 0, 0, 1))
        assert not isinstance(run, str)
        self.flows = {run.id: Flow(run)}
        self.bytes = 0

    def goes_on(self, records: int, size: int) -> bool:
        """Whether the run is due after so many further records of ``size`` bytes."""
        for _ in range(records):
            self.shard.next_offset += 1
            self.bytes += size
            self.carrier.read(self.shard.next_offset, self.bytes)
        return bool(list(self.carrier.due(self.shard, self.flows)))


@pytest.fixture
def past() -> Past:
    return Past()


def test_many_small_records_are_too_many(past: Past) -> None:
    assert not past.goes_on(BEHIND - 2, 100)
    assert past.goes_on(2, 100)


def test_few_large_records_are_too_many_too(past: Past) -> None:
    size = 500_000
    assert not past.goes_on(BEHIND_BYTES // size - 1, size)
    assert past.goes_on(3, size)


def test_a_run_that_was_carried_is_left_alone_for_as_long_again(past: Past) -> None:
    size = 500_000
    assert past.goes_on(BEHIND_BYTES // size + 1, size)
    assert not past.goes_on(BEHIND_BYTES // size - 4, size)
    assert past.goes_on(8, size)


def test_marks_before_the_oldest_run_are_forgotten(past: Past) -> None:
    past.goes_on(1000, 500_000)
    (run_id, run), *_ = past.shard.runs.items()
    past.shard.runs[run_id] = replace(run, fold_from=past.shard.next_offset)
    past.goes_on(200, 500_000)
    assert len(past.carrier._marks) < 150


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(given("go").started(system_json=json.dumps(["rule " * 6_000])), id="a long system prompt"),
        pytest.param(given("要" * 10_000).started(), id="an input of three bytes a character"),
        pytest.param(given("go").started().answers(tool_use("a"), tool_use("b")).finished_tool("a", "x" * 30_000), id="a result"),
    ],
)
def test_where_nothing_else_happens_carrying_comes_to_an_end(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are read, too: if all together were too long a tail, they would be written for ever."""
    for name, value in {"BEHIND_BYTES": 100_000, "LOOK_EVERY_BYTES": 1_000, "MARK_EVERY": 1_000}.items():
        monkeypatch.setattr(carrier, name, value)
    shard, carries, flows = Shard(0), Carrier(), dict[str, Flow]()
    for _ in range(20):
        run = replace(history.run, request=replace(history.run.request, run_id=str(uuid4())), fold_from=0)
        shard.runs[run.id], flows[run.id] = run, Flow(run)
    shard.next_offset, size, written = 1_000, 5_000_000, 0
    carries.read(shard.next_offset, size)
    while due := list(carries.due(shard, flows)):
        for flow, event in due:
            flow.run = shard.runs[event.run_id] = replace(shard.runs.pop(event.run_id), fold_from=shard.next_offset)
            shard.next_offset, size = shard.next_offset + 2, size + len(event.state_json.encode())
            carries.read(shard.next_offset, size)
        written += len(due)
        assert written <= 20, "each of them once"
    assert written == 20
