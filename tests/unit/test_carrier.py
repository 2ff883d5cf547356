"""When an old open run is carried forward: too many records behind the head, or too many bytes (`runfold.worker.carrier`)."""

from dataclasses import replace
from uuid import uuid4

import pytest

from runfold.core.events import Record, RunRequested
from runfold.core.shard import Shard
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
