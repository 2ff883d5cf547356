"""What must hold when every fault is healed and nothing moves any more.

E1  every accepted run has ended or says what it waits for, as its script, its limits or a cancel has it; but for those with a
    record that only a newer build may be able to read
E2  the state of each live worker is the fold of the log
E3  every partition has one owner, no transaction is open, its group offset is at the end
E4  every record that nobody can read is in the dead-letter topic
E5  where nothing but planned restarts happened, the log knows how each call ended, and none was aborted if there was time
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runfold.core.events import Reason, Status
from runfold.core.run import Run
from runfold.worker.partition import Partition

if TYPE_CHECKING:
    from runfold.simulation.world import World

CUT_SHORT = {  # reasons that a script does not foresee
    Reason.CANCEL,
    Reason.DEADLINE,
    Reason.NO_PROGRESS,
    Reason.BUDGET,
    Reason.STEP_CAP,
    Reason.MODEL_REQUEST,
    Reason.MODEL_ACCESS,
    Reason.RATE_LIMITED,
    Reason.OVERLOADED,
    Reason.API_ERROR,
    Reason.CONNECTION,
    Reason.MODEL_TIMEOUT,
    Reason.UNKNOWN_AGENT,
    Reason.CONFIG,
    Reason.OUTCOME_UNKNOWN,
    Reason.CRASH_LOOP,
    Reason.MAX_TOKENS,
    Reason.UNREADABLE_RECORD,
}

INTERRUPTED = {  # with a call under way
    Reason.CANCEL,
    Reason.DEADLINE,
    Reason.NO_PROGRESS,
    Reason.OUTCOME_UNKNOWN,
    Reason.UNREADABLE_RECORD,
}


def complaints_at_the_end(world: "World") -> Iterator[str]:
    for run_id in world.clients.accepted:
        yield from _of_run(world, run_id)
    owners: dict[int, Partition] = {}
    for machine in world.machines:
        worker = machine.worker and machine.worker.worker
        for number, partition in (worker.partitions if worker else {}).items():
            if partition.owned and number in owners:
                yield f"E3: partition {number} has two owners"
            owners[number] = partition
    for number in range(world.plan.partitions):
        yield from _of_partition(world, number, owners.get(number))
    lost = {(one.partition, one.offset) for one in world.referee.unreadable}
    lost -= {(one.partition, one.offset) for one in world.broker.dead_letters}
    yield from (f"E4: {partition}/{offset} is in no dead-letter topic" for partition, offset in sorted(lost))
    yield from _in_vain(world)
    yield from world.loop.failures


def _in_vain(world: "World") -> Iterator[str]:
    if not world.plan.rates.kills_nobody:
        return
    if world.plan.patient:
        yield from (f"E5: {attempt} was aborted, and had time" for attempt in sorted(world.referee.aborted))
    for attempt in world.referee.in_vain():
        run = world.referee.run(attempt[0])
        if run is not None and not _may_be_in_vain(world, run):
            yield f"E5: the call for {attempt} was made in vain"


def _may_be_in_vain(world: "World", run: Run) -> bool:
    """A progress timeout ends the call under way, and a reset may take its RunFinished back: time of a reset is not counted."""
    if run.limits.progress_timeout_ms is not None or run.reason in INTERRUPTED:
        return True
    return bool(world.referee.resumed[run.id]) or run.id in world.referee.parked


def _of_run(world: "World", run_id: str) -> Iterator[str]:
    run, script = world.referee.run(run_id), world.scripts[run_id]
    if run is None:
        yield f"E1: run {run_id} was accepted and is not in the log"
    elif run_id in world.referee.parked and not run.status.final:
        return
    elif not run.status.final and run.status is not Status.SUSPENDED:
        yield f"E1: run {run_id} is {run.status} and nothing moves: {run}"
    elif run.reason not in CUT_SHORT and run.status is not script.status:
        yield f"E1: run {run_id} is {run.status} ({run.reason}: {run.detail}), its script ends {script.status}"
    elif run.status is Status.SUCCEEDED and run.output != script.output:
        yield f"E1: run {run_id} has the output {run.output[:80]!r}, its script {script.output[:80]!r}"
    elif run_id in world.clients.cancelled and not run.status.final:
        yield f"E1: run {run_id} was cancelled and is {run.status}"


def _of_partition(world: "World", number: int, owner: Partition | None) -> Iterator[str]:
    stored, log = world.broker.partitions[number], world.referee.books[number]
    if stored.stable_end != stored.end:
        yield f"E3: a transaction of partition {number} is open"
    if owner is None or not owner.owned:
        yield f"E3: nobody owns partition {number}"
        return
    if log.position.next != log.shard.next_offset:
        yield f"E3: the group's offset of partition {number} is {log.position.next}, the log is read to {log.shard.next_offset}"
    yield from _differences(number, owner.shard.runs, log.shard.runs)
    yield from _differences(number, {flow.run.id: flow.run for flow in owner.flows.values()}, log.shard.runs)


def _differences(number: int, held: dict[str, Run], folded: dict[str, Run]) -> Iterator[str]:
    if held != folded:
        yield f"E2: partition {number}: its owner holds {sorted(held.items())}, the log folds to {sorted(folded.items())}"
