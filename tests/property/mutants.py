"""The engine with one of its rules broken on purpose. Each function breaks one: the rule is in its docstring."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from runfold.core import decide
from runfold.core.events import Command, LeaseAcquired, OwnerEvent, Record
from runfold.core.run import Run
from runfold.core.shard import Ignored, Shard
from runfold.log.memory.partition import Partition as StoredPartition
from runfold.ports import Appender, Position
from runfold.simulation.chance import CALM, Plan, plan_of
from runfold.worker.flow import Flow, Step
from runfold.worker.lane import Lane
from runfold.worker.partition import Partition
from runfold.worker.planner import Planner


def skips_the_marker(patch: pytest.MonkeyPatch) -> None:
    """A takeover writes LeaseAcquired before anything else."""
    commit = Lane._commit

    async def without_marker(lane: Lane, appender: Appender, batch: list[OwnerEvent]) -> None:
        partition: Any = lane.owner
        if batch and batch[0] is lane.marker:
            await asyncio.sleep(0.05)  # and reads meanwhile
            if partition.shard.lease is not None:
                now = partition.resources.log.link.clock()
                partition.clock.saw(now)
                partition._acquired(Record(batch[0], partition.number, partition.shard.epoch, now))
                return
        await commit(lane, appender, batch)

    patch.setattr(Lane, "_commit", without_marker)


def acts_before_the_fold_is_complete(patch: pytest.MonkeyPatch) -> None:
    """Only one's own LeaseAcquired, read back, proves that the fold is complete."""
    ignored = Partition._ignored

    def any_lease_will_do(partition: Partition, record: Record, why: Ignored, own: bool) -> None:
        if isinstance(record.event, LeaseAcquired) and record.event is not partition.lane.marker:
            partition.clock.saw(record.timestamp)
            partition._acquired(record)
        else:
            ignored(partition, record, why, own)

    patch.setattr(Partition, "_ignored", any_lease_will_do)


def folds_from_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """A fold begins at the low watermark, not where the owner before has stopped reading."""

    async def from_next(partition: Partition) -> None:
        if partition._reading is None:
            partition._inherited = await partition.resources.log.position(partition.number)
            partition.shard.next_offset = partition._inherited.next
            partition._reading = await partition.resources.log.read(partition.number, partition._inherited.next)
            partition._spawn(partition._read(partition._reading))

    patch.setattr(Partition, "fenced", from_next)


def promises_too_much(patch: pytest.MonkeyPatch) -> None:
    """The low watermark stays before the oldest record that an open run needs."""
    position = Partition.position
    patch.setattr(Partition, "position", lambda self: Position(position(self).next, position(self).next))


def offers_refused_metadata_again(patch: pytest.MonkeyPatch) -> None:
    """Who was expelled comes back with other group metadata than the refused."""

    def whatever(lane: Lane, error: object) -> bool:
        return lane.partition in lane.grant().partitions | lane.grant().leaving and bool(lane.grant().proof)

    patch.setattr(Lane, "_may_append", whatever)


def makes_sure_of_nothing(patch: pytest.MonkeyPatch) -> None:
    """After an error one makes sure that the partition is still one's own before it is fenced again."""

    async def at_once(lane: Lane, error: object) -> None:
        pass

    patch.setattr(Lane, "_make_sure", at_once)


def keeps_what_was_waiting(patch: pytest.MonkeyPatch) -> None:
    """A reset forgets events that were waiting to be written."""
    forget = Lane._forget

    def keep(lane: Lane, error: Any) -> None:
        waiting = list(lane._pending)
        forget(lane, error)
        lane._pending.extend(waiting)

    patch.setattr(Lane, "_forget", keep)


def keeps_its_plans(patch: pytest.MonkeyPatch) -> None:
    """After a reset a run is what the log says, whatever was planned beyond that."""

    def nothing_happened(flow: Flow, run: Run) -> tuple[list[Any], None]:
        return [step.end for step in flow.hand.values() if step.end is not None], None

    patch.setattr(Flow, "begin_again", nothing_happened)


def believes_an_uncertain_marker(patch: pytest.MonkeyPatch) -> None:
    """The marker of an append that failed is no lease, even if it comes back."""
    forget = Lane._forget

    def keep(lane: Lane, error: Any) -> None:
        marker = lane.marker
        forget(lane, error)
        lane.marker = marker

    patch.setattr(Lane, "_forget", keep)


def does_not_wait_for_the_echo(patch: pytest.MonkeyPatch) -> None:
    """The next transaction begins when the records of the one before have been read back."""

    async def at_once(lane: Lane) -> None:
        lane._echo.set()

    patch.setattr(Lane, "_read_back_all", at_once)


def lets_what_writes_run_ahead(patch: pytest.MonkeyPatch) -> None:
    """Only what is harmless begins before its start is in the log."""
    patch.setattr(Step, "harmless", True)


def lets_all_run_ahead(patch: pytest.MonkeyPatch) -> None:
    """One step of a run is ahead of the log, and one at most."""
    patch.setattr(Flow, "_may_run_ahead", lambda flow, step: flow.moved and step.harmless)


def runs_ahead_at_once(patch: pytest.MonkeyPatch) -> None:
    """An owner brings a run forward before it runs ahead: what kills its worker must be counted."""
    patch.setattr(Flow, "_may_run_ahead", lambda flow, step: step.harmless and not any(s.begun for s in flow.hand.values()))


def forgets_what_ran_ahead(patch: pytest.MonkeyPatch) -> None:
    """A reset costs no call that ran ahead of the log."""
    patch.setattr(Planner, "would_start", lambda *words: False)


def takes_the_acknowledgement_for_the_echo(patch: pytest.MonkeyPatch) -> None:
    """A step runs when its start was read back, not when its commit was acknowledged."""
    commit = Lane._read_back_all

    async def begin_now(lane: Lane) -> None:
        partition: Any = lane.owner
        for flow in [flow for flow in partition.flows.values() if partition.owned and flow.run.started]:
            for step in flow.hand.values():
                step.committed = step.committed or any(event is step.start for event in lane._unread)
            partition._begin_steps(flow)
        await commit(lane)

    patch.setattr(Lane, "_read_back_all", begin_now)


def fences_nobody(patch: pytest.MonkeyPatch) -> None:
    """A takeover fences the appenders before it."""
    patch.setattr(StoredPartition, "fence", lambda partition: partition.epoch)


def folds_what_old_leases_wrote(patch: pytest.MonkeyPatch) -> None:
    """An event under an older lease than the newest changes nothing."""
    apply = Shard.apply

    def take_it(shard: Shard, record: Record) -> Run | Ignored:
        event = record.event
        if not isinstance(event, LeaseAcquired | Command):
            record = replace(record, event=replace(event, epoch=shard.epoch))
        return apply(shard, record)

    patch.setattr(Shard, "apply", take_it)


def works_under_a_silent_keeper(patch: pytest.MonkeyPatch) -> None:
    """A worker whose keeper has fallen silent starts nothing new."""
    patch.setattr(Partition, "_lease_is_fresh", lambda partition: True)


def repeats_what_cannot_be_repeated(patch: pytest.MonkeyPatch) -> None:
    """A tool that cannot be repeated and whose outcome is unknown is left to a person."""
    patch.setattr(decide, "_stuck", lambda call: None)


def lets_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """A planned restart lets what is under way finish."""

    async def at_once(partition: Partition) -> None:
        partition.draining = True

    patch.setattr(Partition, "drain", at_once)


def aborts_in_silence(patch: pytest.MonkeyPatch) -> None:
    """What a planned restart does not wait for is aborted, and the log knows of it."""

    async def say_nothing(partition: Partition) -> None:
        pass

    patch.setattr(Partition, "abort", say_nothing)


Break = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[Break, dict[str, float]] = {  # and the only faults it is looked for under, where most seeds would miss it
    skips_the_marker: {},
    acts_before_the_fold_is_complete: {},
    folds_from_the_wrong_place: {},
    promises_too_much: {},
    offers_refused_metadata_again: {},
    makes_sure_of_nothing: {},
    keeps_what_was_waiting: {},
    keeps_its_plans: {},
    believes_an_uncertain_marker: {"unheard_commit": 0.1},
    does_not_wait_for_the_echo: {"lost_commit": 0.2},
    takes_the_acknowledgement_for_the_echo: {},
    lets_what_writes_run_ahead: {},
    lets_all_run_ahead: {},
    runs_ahead_at_once: {},
    forgets_what_ran_ahead: {"restart": 20},
    fences_nobody: {"freeze_in_append": 0.1},
    folds_what_old_leases_wrote: {},
    works_under_a_silent_keeper: {"freeze_keeper": 20},
    repeats_what_cannot_be_repeated: {},
    lets_go_at_once: {"restart": 20},
    aborts_in_silence: {"restart": 20},
}


def plan_for(seed: int, faults: Mapping[str, float]) -> Plan:
    """The seed's own plan, or one with nothing but ``faults``."""
    plan = plan_of(seed)
    return replace(plan, rates=replace(CALM, **faults)) if faults else plan
