"""What becomes of runs whose records cannot all be read (`runfold.core.gaps`)."""

import time
from uuid import uuid4

import pytest

from runfold.core.events import Delivery, Problem, Reason, Record, RunFinished, RunSuspended, Status, Unreadable, Usage
from runfold.core.gaps import MOST_CARRIED, MOST_REQUESTS, Gaps
from runfold.core.shard import OVERLAP, Shard
from tests.logs import RunScript, ScriptedLog


def unreadable(
    log: ScriptedLog, run_id: str, problem: Problem = Problem.MALFORMED, *, owner: bool = True, kind: bytes = b""
) -> None:
    """The next record of ``log``."""
    place = (log.partition, log.next_offset, log.now)
    log.deliveries.append(Unreadable(*place, run_id.encode(), b"?", problem, "no framing", kind, owner))
    log.leave_gap()


def told(log: ScriptedLog, start: int = 0) -> tuple[Gaps, Shard, list[Reason | None]]:
    """What a fold from ``start`` on knows, and what it said of each record that it could not read."""
    shard = Shard(log.partition)
    gaps, said = Gaps(shard), list[Reason | None]()
    for delivery in log.deliveries:
        if delivery.offset >= start:
            _tell(gaps, shard, delivery, said)
    return gaps, shard, said


def _tell(gaps: Gaps, shard: Shard, delivery: Delivery, said: list[Reason | None]) -> None:
    if isinstance(delivery, Record):
        gaps.read(delivery, shard.apply(delivery))
    else:
        shard.next_offset = delivery.offset + 1
        said.append(gaps.left_out(delivery))


@pytest.fixture
def log() -> ScriptedLog:
    log = ScriptedLog()
    log.lease()
    return log


@pytest.fixture
def run(log: ScriptedLog) -> RunScript:
    """A run in the middle of its first step."""
    return log.request().start().call_model()


# ---- what nobody can read


def test_a_record_in_the_owners_name_that_nobody_can_read_suspends_its_run(log: ScriptedLog, run: RunScript) -> None:
    unreadable(log, run.id)
    gaps, shard, said = told(log)
    assert said == [Reason.UNREADABLE_RECORD]
    suspension = gaps.suspension(shard.runs[run.id], -1)
    assert suspension is not None
    assert (suspension.reason, suspension.tool_use_id) == (Reason.UNREADABLE_RECORD, None)
    assert "0/4" in suspension.detail
    assert gaps.suspension(shard.runs[run.id], 4) is None, "one is on its way"
    assert run.id not in gaps.parked


@pytest.mark.parametrize("problem", [Problem.NULL_VALUE, Problem.WRONG_KEY, Problem.MALFORMED])
def test_what_anybody_may_have_written_touches_no_run(log: ScriptedLog, run: RunScript, problem: Problem) -> None:
    unreadable(log, run.id, problem, owner=False)
    gaps, shard, said = told(log)
    assert (said, gaps.suspension(shard.runs[run.id], -1), run.id in gaps) == ([None], None, False)


def test_one_suspension_is_enough_for_many_records_and_a_resumption_skips_them_for_ever(log: ScriptedLog, run: RunScript) -> None:
    unreadable(log, run.id)
    unreadable(log, run.id)
    run.suspend(Reason.UNREADABLE_RECORD)
    unreadable(log, run.id)
    gaps, shard, _ = told(log)
    assert gaps.suspension(shard.runs[run.id], -1) is None, "it waits for a person already"
    run.resume()
    gaps, shard, _ = told(log)
    assert gaps.suspension(shard.runs[run.id], -1) is None
    assert shard.runs[run.id].status is Status.RUNNING
    unreadable(log, run.id)
    gaps, shard, _ = told(log)
    assert gaps.suspension(shard.runs[run.id], -1) is not None, "the next one is a matter of its own"


def test_a_run_that_waits_for_something_else_waits_for_this_too(log: ScriptedLog, run: RunScript) -> None:
    run.suspend(Reason.BUDGET)
    unreadable(log, run.id)
    gaps, shard, _ = told(log)
    assert gaps.suspension(shard.runs[run.id], -1) is not None


def test_the_word_of_an_owner_that_was_replaced_is_no_suspension(log: ScriptedLog, run: RunScript) -> None:
    old = log.shard.epoch
    unreadable(log, run.id)
    log.lease("worker-B")
    run.append(RunSuspended, epoch=old, reason=Reason.UNREADABLE_RECORD, detail="", tool_use_id=None)
    gaps, shard, _ = told(log)
    assert gaps.suspension(shard.runs[run.id], -1) is not None


# ---- what a newer build can read


@pytest.mark.parametrize("owner", [True, False])
def test_a_newer_record_parks_its_run_and_holds_the_low_watermark(log: ScriptedLog, run: RunScript, owner: bool) -> None:
    unreadable(log, run.id, Problem.UNKNOWN_SCHEMA, owner=owner)
    log.leave_gap(10 * OVERLAP)
    log.request().to_the_end()
    gaps, shard, said = told(log)
    assert (said, set(gaps.parked)) == ([Reason.NEEDS_NEWER_VERSION], {run.id})
    assert gaps.low == shard.runs[run.id].first_offset
    assert gaps.suspension(shard.runs[run.id], -1) is None, "nothing is written for it"


@pytest.mark.parametrize("owner", [True, False])
def test_only_a_run_whose_owners_were_all_understood_may_be_ended(log: ScriptedLog, run: RunScript, owner: bool) -> None:
    unreadable(log, run.id, Problem.UNKNOWN_SCHEMA, owner=owner)
    unreadable(log, run.id, Problem.UNKNOWN_SCHEMA, owner=False)
    gaps, shard, _ = told(log)
    assert gaps.forbids(shard.runs[run.id])
    run.cancel()
    gaps, shard, _ = told(log)
    assert gaps.forbids(shard.runs[run.id]) is owner, "an owner's record may hold what the end must say"


@pytest.mark.parametrize(("owner", "kind"), [(True, b"RunSnapshotted"), (False, b"RunRequested")])
def test_a_run_that_begins_with_a_newer_record_is_parked_and_not_lost(log: ScriptedLog, owner: bool, kind: bytes) -> None:
    begin = log.next_offset
    ghost = "3b241101-e2bb-4255-8caf-4136c566a962"
    unreadable(log, ghost, Problem.UNKNOWN_SCHEMA, owner=owner, kind=kind)
    log.leave_gap(10 * OVERLAP)
    log.request().to_the_end()
    gaps, shard, said = told(log, begin)
    assert (said, set(gaps.parked)) == ([Reason.NEEDS_NEWER_VERSION], {ghost})
    assert gaps.low == begin, "the next owner must still read it"
    assert ghost not in shard.runs
    end = {"status": Status.CANCELLED, "reason": Reason.CANCEL, "detail": "", "output": "", "command_id": None}
    RunScript(log, ghost).append(RunFinished, **end, steps=0, usage=Usage(), cost=None)
    gaps, _, _ = told(log, begin)
    assert not gaps.parked, "a newer worker ended it"
    assert gaps.low > begin


def test_a_newer_record_of_a_run_that_is_over_or_that_anybody_may_have_made_up_parks_nothing(log: ScriptedLog) -> None:
    ended = log.request().to_the_end()
    unreadable(log, ended.id, Problem.UNKNOWN_SCHEMA)
    unreadable(log, "3b241101-e2bb-4255-8caf-4136c566a962", Problem.UNKNOWN_SCHEMA, owner=False)
    unreadable(log, "lease/0", Problem.UNKNOWN_SCHEMA)
    gaps, _, said = told(log)
    assert said == [None, None, None]
    assert not gaps.parked


@pytest.mark.parametrize("problem", [Problem.MALFORMED, Problem.UNKNOWN_SCHEMA])
def test_a_snapshot_by_somebody_who_read_the_record_closes_the_gap(log: ScriptedLog, run: RunScript, problem: Problem) -> None:
    state = run.run
    unreadable(log, run.id, problem)
    run.snapshot()
    gaps, _, _ = told(log)
    assert run.id in gaps, "its writer had not"
    run.snapshot(last_offset=state.last_offset + 1)
    gaps, _, _ = told(log)
    assert run.id not in gaps


@pytest.mark.parametrize("problem", [Problem.MALFORMED, Problem.UNKNOWN_SCHEMA])
def test_the_end_of_a_run_closes_its_gaps(log: ScriptedLog, run: RunScript, problem: Problem) -> None:
    unreadable(log, run.id, problem)
    run.finish(Status.CANCELLED, Reason.CANCEL)
    gaps, _, _ = told(log)
    assert run.id not in gaps


def test_records_in_owners_names_do_neither_and_a_flood_of_them_is_read_in_time(log: ScriptedLog) -> None:
    """Whoever may write to the topic may write their header too. Nothing here may cost more the more there are."""
    run = log.request().start()
    for _ in range(30_000):
        unreadable(log, str(uuid4()), Problem.UNKNOWN_SCHEMA)
    for _ in range(20_000):
        unreadable(log, str(uuid4()), Problem.UNKNOWN_SCHEMA, owner=False, kind=b"RunRequested")
    for _ in range(20_000):
        unreadable(log, run.id, Problem.UNKNOWN_SCHEMA)
    began = time.process_time()
    gaps, shard, _ = told(log)
    for _ in range(20_000):
        assert (gaps.low, gaps.shown(shard.runs[run.id]).reason) == (1, Reason.NEEDS_NEWER_VERSION)
    assert time.process_time() - began < 10, "it took minutes when each record looked at all of them"
    assert len(gaps.parked) == MOST_CARRIED + MOST_REQUESTS + 1


def test_one_that_has_ended_makes_room_for_the_next(log: ScriptedLog) -> None:
    ids = [str(uuid4()) for _ in range(MOST_REQUESTS + 1)]
    for id_ in ids[:-1]:
        unreadable(log, id_, Problem.UNKNOWN_SCHEMA, owner=False, kind=b"RunRequested")
    end = {"status": Status.CANCELLED, "reason": Reason.CANCEL, "detail": "", "output": "", "command_id": None}
    RunScript(log, ids[0]).append(RunFinished, **end, steps=0, usage=Usage(), cost=None)
    unreadable(log, ids[-1], Problem.UNKNOWN_SCHEMA, owner=False, kind=b"RunRequested")
    gaps, _, _ = told(log)
    assert gaps.parked == set(ids[1:])


def test_requests_that_only_a_newer_build_can_read_do_not_hold_the_low_watermark_without_limit(log: ScriptedLog) -> None:
    """Anybody can write them: the first ones wait, the rest are a matter for the dead-letter topic."""
    for _ in range(MOST_REQUESTS + 3):
        unreadable(log, str(uuid4()), Problem.UNKNOWN_SCHEMA, owner=False, kind=b"RunRequested")
    gaps, _, said = told(log)
    assert len(gaps.parked) == MOST_REQUESTS
    assert said == [Reason.NEEDS_NEWER_VERSION] * MOST_REQUESTS + [None] * 3
