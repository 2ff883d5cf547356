"""The fold of one partition: which runs are open in it, and whose records count."""

from dataclasses import replace
from random import Random

import pytest

from runfold.core import shard
from runfold.core.events import (
    FINAL,
    Event,
    LeaseAcquired,
    Reason,
    Record,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    ToolStepFinished,
)
from runfold.core.run import Run
from runfold.core.shard import OVERLAP, Ignored, Shard
from runfold.testing.given import RUN_ID, given, text, tool_use

ANSWERED = given().started().answers(tool_use("a")).finished_tool("a").answers(text("42")).finished()


def folded(records: tuple[Record, ...] | list[Record]) -> tuple[Shard, list[Run | Ignored]]:
    partition = Shard(0)
    return partition, [partition.apply(record) for record in records]


class Writer:
    """Appends events of any runs to one partition."""

    def __init__(self) -> None:
        self.shard = Shard(0)
        self.records: list[Record] = []

    def write(self, event: Event) -> Run | Ignored:
        self.records.append(Record(event, 0, len(self.records), 1_000 + len(self.records)))
        return self.shard.apply(self.records[-1])

    def request(self, run_id: str) -> Run | Ignored:
        return self.write(RunRequested(run_id=run_id, agent="a", input="go"))

    def finish(self, run_id: str) -> Run | Ignored:
        event = ANSWERED.records[-1].event
        assert isinstance(event, RunFinished)
        return self.write(replace(event, run_id=run_id, epoch=max(0, self.shard.epoch)))


def test_an_open_run_is_kept_and_an_ended_one_is_given_a_last_time() -> None:
    partition, outcomes = folded(ANSWERED.records)
    assert outcomes[0] is Ignored.LEASE
    assert all(isinstance(outcome, Run) for outcome in outcomes[1:])
    assert outcomes[-1] == ANSWERED.run
    assert partition.runs == {}
    assert partition.has_ended(RUN_ID)


def test_the_fold_of_a_partition_is_that_of_each_run() -> None:
    history = given().started().answers(tool_use("a"))
    partition, _ = folded(history.records)
    assert partition.runs == {RUN_ID: history.run}
    assert partition.next_offset == history.records[-1].offset + 1


# ---- whose records count


def test_a_new_lease_shuts_out_the_owner_before() -> None:
    zombie = given().started().started_model()
    history = zombie.taken_over()
    partition, _ = folded(history.records)
    late = Record(zombie.answers(text("late")).records[-1].event, 0, history.records[-1].offset + 1, history.now)
    assert partition.apply(late) is Ignored.STALE_EPOCH
    assert partition.runs[RUN_ID] == history.run


def test_an_owners_event_from_before_its_own_lease_does_not_count() -> None:
    """Its epoch is the offset of a record that comes later: nobody honest wrote that."""
    partition, outcomes = folded(replace(given(), epoch=2).started().records)
    assert outcomes[-1] is Ignored.STALE_EPOCH
    assert partition.epoch == 0


def test_a_fold_that_begins_behind_the_lease_knows_the_epoch_from_the_events() -> None:
    history = given().taken_over().started()
    partition = Shard(0)
    for record in history.records:
        if not isinstance(record.event, LeaseAcquired):
            partition.apply(record)
    assert partition.epoch == history.epoch
    stale = replace(history, epoch=0).started_model().records[-1]
    assert partition.apply(stale) is Ignored.STALE_EPOCH


def test_commands_are_never_fenced() -> None:
    history = given().started().taken_over().cancel_requested()
    partition, outcomes = folded(history.records)
    assert isinstance(outcomes[-1], Run)
    assert len(partition.runs[RUN_ID].inbox) == 1


# ---- records that change no run


def test_r06_2_records_of_a_run_that_does_not_exist_are_orphans() -> None:
    writer = Writer()
    finished = next(record.event for record in ANSWERED.records if isinstance(record.event, ToolStepFinished))
    assert writer.write(RunCancelRequested(run_id="ghost", command_id="c", requested_by="x")) is Ignored.ORPHAN
    assert writer.write(replace(finished, run_id="ghost")) is Ignored.ORPHAN
    assert isinstance(writer.request("good"), Run)
    assert list(writer.shard.runs) == ["good"]


@pytest.mark.parametrize("ended", [False, True])
def test_k09_2_a_second_request_is_repeated_whether_the_run_is_open_or_has_ended(ended: bool) -> None:
    writer = Writer()
    first = writer.request("r")
    if ended:
        writer.finish("r")
    assert writer.write(RunRequested(run_id="r", agent="a", input="B")) is Ignored.REPEATED
    assert writer.shard.runs == ({} if ended else {"r": first})


def test_b02_4_what_comes_after_the_end_is_ignored() -> None:
    partition, _ = folded(ANSWERED.records)
    late = ANSWERED.cancel_requested().records[-1]
    assert partition.apply(late) is Ignored.AFTER_END
    assert partition.apply(replace(ANSWERED.records[-1], offset=late.offset + 1)) is Ignored.AFTER_END


def test_a_record_that_says_nothing_new_is_repeated() -> None:
    history = given().started()
    partition, _ = folded(history.records)
    assert partition.apply(replace(history.records[-1], offset=history.records[-1].offset + 1)) is Ignored.REPEATED


# ---- where a fold must start


def long_log(runs: int) -> Writer:
    writer = Writer()
    for n in range(runs):
        writer.request(f"r{n}")
    return writer


def test_low_is_where_the_oldest_open_run_begins() -> None:
    writer = long_log(2 * OVERLAP)
    assert writer.shard.low == 0
    writer.finish("r1")
    assert writer.shard.low == 0, "r0 is open still"
    writer.finish("r0")
    assert writer.shard.low == 2


def test_low_leaves_an_overlap_so_that_late_repeats_are_known_after_a_restart() -> None:
    writer = long_log(2 * OVERLAP)
    for n in range(2 * OVERLAP):
        writer.finish(f"r{n}")
    assert writer.shard.low == writer.shard.next_offset - OVERLAP
    assert Shard(0).low == 0
    assert long_log(3).shard.low == 0


def test_k09_2_a_fold_from_low_knows_the_runs_that_ended_in_the_overlap() -> None:
    """Their requests lie before it: a repeated one must not begin a second life."""
    partition, outcomes = folded(ANSWERED.records[5:])
    assert {outcome for outcome in outcomes if isinstance(outcome, Ignored)} == {Ignored.ORPHAN}
    again = Record(RunRequested(run_id=RUN_ID, agent="a", input="B"), 0, partition.next_offset, 0)
    assert partition.apply(again) is Ignored.REPEATED


@pytest.mark.parametrize("seed", range(5))
def test_a_fold_from_low_equals_the_fold_from_the_beginning(seed: int) -> None:
    random = Random(seed)
    writer = Writer()
    for n in range(2 * OVERLAP):
        writer.request(f"r{n}")
        if random.random() < 0.9:
            writer.finish(random.choice(list(writer.shard.runs)))
        if n == OVERLAP + 100:  # the old ones end, so that low moves
            for run_id in list(writer.shard.runs)[:-3]:
                writer.finish(run_id)
    assert writer.shard.low > 0
    tail, _ = folded(writer.records[writer.shard.low :])
    assert tail.runs == writer.shard.runs
    assert (tail.low, tail.next_offset) == (writer.shard.low, writer.shard.next_offset)


def test_only_so_many_ended_runs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "REMEMBERED", 3)
    writer = Writer()
    for n in range(5):
        writer.request(f"r{n}")
        writer.finish(f"r{n}")
    assert [writer.shard.has_ended(f"r{n}") for n in range(5)] == [False, False, True, True, True]


def test_every_way_a_run_ends_lets_go_of_it() -> None:
    for status in FINAL:
        partition, _ = folded(given().finished(status, Reason.CANCEL).records)
        assert partition.runs == {}
