"""One partition of this worker: read, fold, decide, act. State advances only by what is read back.

Two tasks: the lane writes (fence, marker, transactions), the reader reads and never stops, also while the lane is being reset.
The partition acts between the echo of its marker and the next interruption.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from runfold.core.errors import LogError
from runfold.core.events import (
    Command,
    CommandRejected,
    LeaseAcquired,
    ModelStepStarted,
    OwnerEvent,
    Problem,
    Reason,
    Record,
    Rejection,
    RunCancelRequested,
    RunEvent,
    RunFinished,
    RunResumeRequested,
    RunSnapshotted,
    Unreadable,
)
from runfold.core.gaps import Gaps, run_of
from runfold.core.run import Run
from runfold.core.shard import Ignored, Shard
from runfold.ports import Grant, Position, Reading
from runfold.worker.carrier import Carrier
from runfold.worker.clock import BrokerClock
from runfold.worker.flow import Flow, Step, StepEnded, StepStarted
from runfold.worker.lane import Lane
from runfold.worker.planner import Planner
from runfold.worker.poison import Poison
from runfold.worker.resources import Resources
from runfold.worker.step import call_model, call_tool
from runfold.worker.takeover import Takeover

PROBATION_SECONDS = 2.0  # what kills its worker does so soon: a step that has run for so long holds up no other suspect
MOST_SAID = 20  # runs that wait for a newer worker, of one partition, are named in the log; the gauge counts them all
log = logging.getLogger(__name__)


class Partition:
    """Own one partition from `start` to `close`. Lives on the loop; ``grant`` gives what the keeper said last."""

    def __init__(
        self, number: int, resources: Resources, grant: Callable[[], Grant], failed: Callable[[BaseException], None]
    ) -> None:
        """``failed`` is told of an exception that nobody expected: the process cannot go on with it."""
        self.number, self.resources, self.grant, self.failed = number, resources, grant, failed
        self.shard = Shard(number)
        self.flows: dict[str, Flow] = {}
        self.lane = Lane(number, resources, grant, self)
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.clock = BrokerClock(self._now)
        self.planner = Planner(resources)
        self.owned = self.draining = False
        self._stalled = False  # a run could not go on because the keeper was silent
        self._reading: Reading | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._inherited = Position()  # of the owner before us: records below were counted and answered by it
        self._first_epoch = -1
        self._began = 0.0
        self._quiet = asyncio.Event()
        self._touched: dict[str, Flow] = {}
        self.gaps = Gaps(self.shard)
        self._poison = Poison(resources.log, resources.observer.buried)
        self._carrier = Carrier()
        said = grant()
        self._takeover = Takeover(said.died_at if number in said.orphaned else None)

    @property
    def was_owned(self) -> bool:
        return self._first_epoch >= 0

    @property
    def burying(self) -> bool:
        """Whether unreadable records wait for the dead-letter topic."""
        return len(self._poison) > 0

    # ---- life

    def start(self) -> None:
        self._began = self._now()
        self._spawn(self.lane.run())

    async def drain(self) -> None:
        """Start nothing new; return when all that was under way is in the log. Whoever calls bounds the wait."""
        self.draining = True
        self._withdraw_starts()
        self._check_quiet()
        await self._quiet.wait()

    def _withdraw_starts(self) -> None:
        """Those in no transaction yet; and with them the ends of runs, whose totals count them: the next owner ends those."""
        starts = [event for event in self.lane.withdraw(self._is_start_of_nothing) if isinstance(event, StepStarted)]
        for start in starts:
            if (flow := self.flows.get(start.run_id)) is not None:
                flow.forget(start)
        runs = {start.run_id for start in starts}
        self.lane.withdraw(lambda event: isinstance(event, RunFinished) and event.run_id in runs)

    def _is_start_of_nothing(self, event: OwnerEvent) -> bool:
        """Whether it starts a step that is not under way."""
        return isinstance(event, StepStarted) and not ((flow := self.flows.get(event.run_id)) and flow.has_begun(event))

    async def abort(self) -> None:
        """`drain` took too long: abort what is under way and say so in the log, lest it look like the work of a step that kills.

        Returns when that is in the log. Whoever calls bounds the wait.
        """
        for flow in self.flows.values():
            for end in flow.abort_steps():
                if self.owned:  # else the next marker's echo submits it
                    self._submit(flow, end)
        self._check_quiet()
        await self._quiet.wait()

    def lose(self) -> None:
        """Somebody else may own the partition already: act no more, and let `drain` return now."""
        self.owned = False
        self.draining = True
        for flow in self.flows.values():
            flow.stop_steps()
        self._quiet.set()

    async def close(self) -> None:
        """Let go at once: abort what is under way, write nothing more."""
        self.owned = False
        for flow in self.flows.values():
            flow.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reading is not None:
            await self._reading.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def granted(self) -> None:
        """The keeper spoke. What waited for a fresh grant goes on."""
        self.lane.granted()
        if self._stalled and self._lease_is_fresh():
            self._stalled = False
            for flow in list(self.flows.values()):
                self._advance(flow)

    # ---- for the lane

    def position(self) -> Position:
        reached = max(self._inherited.next, self._poison.before(self.shard.next_offset))
        return Position(reached, min(reached, max(self._inherited.low, self.gaps.low)))

    async def fenced(self) -> None:
        found, before = await self.resources.log.position(self.number), self._inherited
        self._inherited = Position(max(before.next, found.next), max(before.low, found.low))  # others may have owned it meanwhile
        if self._reading is None:
            self.shard.next_offset = self._inherited.low
            self._takeover.reading(self._now())
            self._reading = await self.resources.log.read(self.number, self._inherited.low)
            self._spawn(self._read(self._reading))

    def interrupted(self, error: LogError) -> None:
        log.warning("partition %d: %s: %s; taking over again", self.number, type(error).__name__, error)
        self.owned = False
        self._began = self._now()

    # ---- reading

    async def _read(self, reading: Reading) -> None:
        async for batch in reading:
            for delivery in batch:
                if isinstance(delivery, Record):
                    self._absorb(delivery)
                else:
                    self._unreadable(delivery)
            self._carrier.read(self.shard.next_offset, reading.taken)
            self._advance_touched()
            self.lane.moved()

    def _absorb(self, record: Record) -> None:
        own = self.lane.read_back(record.event)
        outcome = self.shard.apply(record)
        self.gaps.read(record, outcome)
        if own:
            self.clock.saw(record.timestamp)
        if isinstance(outcome, Ignored):
            self._ignored(record, outcome, own)
            return
        flow = self.flows.get(outcome.id)
        if flow is None and self.owned:
            flow = self.flows[outcome.id] = Flow(outcome)
        if flow is not None:
            flow.read(record, outcome, own)
            self._touched[outcome.id] = flow
        if self._is_news(record):
            self.resources.observer.applied(record, outcome)

    def _is_news(self, record: Record) -> bool:
        """Whether nobody before us has counted this record: our own events, and commands that no owner had read."""
        event = record.event
        if isinstance(event, Command):
            return record.offset >= self._inherited.next
        return not isinstance(event, LeaseAcquired) and event.epoch >= self._first_epoch >= 0

    def _ignored(self, record: Record, why: Ignored, own: bool) -> None:
        event = record.event
        if event is self.lane.marker:
            self._acquired(record)
        elif isinstance(event, LeaseAcquired):
            return
        elif own and isinstance(event, RunSnapshotted):
            self._passed_over(record, event.run_id)
        elif own:
            self._resynchronise(event.run_id)
        elif record.offset >= self._inherited.next:
            self.resources.observer.ignored(record, why)
            if why is Ignored.AFTER_END and self.owned and isinstance(event, RunCancelRequested | RunResumeRequested):
                self._reject(event)

    def _passed_over(self, snapshot: Record, run_id: str) -> None:
        """A command came between a snapshot and the log: the fold goes on without it, and so do we."""
        if (flow := self.flows.get(run_id)) is not None:
            flow.read(snapshot, flow.run, own=True)
            self._touched[run_id] = flow

    def _resynchronise(self, run_id: str) -> None:
        """The fold did not take an event that we thought it would: what is ahead of the log is not to be trusted."""
        if (flow := self.flows.get(run_id)) is not None:
            self._begin_again(flow, flow.run)
            self._touched[run_id] = flow

    def _begin_again(self, flow: Flow, run: Run) -> None:
        """From what the log says, with the results that it does not know of yet."""
        ends, step = flow.begin_again(run)
        for end in ends:
            self._submit(flow, end)
        if step is None:
            return
        if not self.gaps.forbids(run) and self.planner.would_start(step.start, flow.ahead, self.clock.now(), flow.hand):
            self._start_again(flow, step)
        else:
            step.drop()

    def _start_again(self, flow: Flow, step: Step) -> None:
        """The log lost the start of a step that had begun ahead of it."""
        self._submit(flow, step.start)
        step.start, flow.hand[step.attempt] = flow.hand[step.attempt].start, step
        if step.end is not None:
            self._submit(flow, step.end)

    def _reject(self, command: RunCancelRequested | RunResumeRequested) -> None:
        self.lane.submit(
            CommandRejected(
                run_id=command.run_id, epoch=self.shard.epoch, command_id=command.command_id, reason=Rejection.RUN_FINISHED
            )
        )

    def _unreadable(self, delivery: Unreadable) -> None:
        self.lane.heard += 1
        self.shard.next_offset = delivery.offset + 1
        if self._stops_a_run(delivery) is Reason.NEEDS_NEWER_VERSION:
            return  # it is no poison: whoever can read it will
        if delivery.offset < self._inherited.next:
            return
        self.resources.observer.unreadable(delivery)
        if delivery.problem is not Problem.NULL_VALUE and self._poison.add(delivery):
            self._spawn(self._bury())

    def _stops_a_run(self, delivery: Unreadable) -> Reason | None:
        """What is under way for a run that is left without a record is aborted."""
        run_id = run_of(delivery)
        known = self.gaps.is_parked(run_id)
        reason = self.gaps.left_out(delivery)
        if reason is Reason.NEEDS_NEWER_VERSION and not known and len(self.gaps.parked) <= MOST_SAID:
            where = f"{delivery.partition}/{delivery.offset}"
            said = "run %s waits for a newer worker at %s: %s"
            log.error(said, run_id, where, delivery.detail, extra={"runfold.run.id": run_id})
        if reason is not None and (flow := self.flows.get(run_id)) is not None:
            if reason is Reason.NEEDS_NEWER_VERSION:
                flow.drop()
            else:
                flow.stop_steps()  # how steps ended is on its way to the log, after their starts
            self._touched[run_id] = flow
        return reason

    async def _bury(self) -> None:
        await self._poison.bury()
        self.lane.moved()

    # ---- owning

    def _acquired(self, record: Record) -> None:
        """Our marker came back: the fold is complete, the lease is ours, its epoch is the marker's offset."""
        if self._quiet.is_set():
            return  # it is being let go
        inherited = not self._first_epoch >= 0
        self._first_epoch = record.offset if inherited else self._first_epoch
        self.owned = True
        self.planner.epoch, self.planner.since = record.offset, record.timestamp
        folded = self.lane.heard if inherited else 0
        self.resources.observer.acquired(self.number, record.offset, folded, self._now() - self._began)
        if inherited:
            self._tell_of_takeover(record)
        for id_ in [id_ for id_ in self.flows if id_ not in self.shard.runs]:
            self.flows.pop(id_).drop()
        for run in list(self.shard.runs.values()):
            flow = self.flows.setdefault(run.id, Flow(run))
            self._begin_again(flow, run)
            self._touched[run.id] = flow
            if inherited and run.started is not None and not self.gaps.is_parked(run.id):
                self.resources.observer.resumed(run)

    def _tell_of_takeover(self, marker: Record) -> None:
        now, takeover = self._now(), self._takeover
        failover = takeover.failover(marker, self.shard.runs.values(), now)
        self.resources.observer.took_over(self.number, takeover.fold_seconds(now), failover)

    def _advance_touched(self) -> None:
        if not self.owned:
            return  # the marker's echo will look at every run
        touched, self._touched = self._touched, {}
        for flow in touched.values():
            self._advance(flow)
        for flow, snapshot in self._carrier.due(self.shard, self.flows, self.gaps):
            self._submit(flow, snapshot)
        if self.draining:
            self._check_quiet()

    def _advance(self, flow: Flow) -> None:
        """Write what is to be written for a run, and start what has been written."""
        if not self.owned or self.gaps.forbids(flow.run):
            return
        if flow.run.status.final:
            flow.drop()
            self.flows.pop(flow.run.id, None)
            return
        if not self._lease_is_fresh():
            self._stalled = True  # nothing new, and no word of it in the log: it would look started
            return
        if not self.draining:
            self._plan(flow)
        if flow.ahead.status.final:
            flow.stop_steps()  # nothing may follow the end
        else:
            self._begin_steps(flow)

    def _plan(self, flow: Flow) -> None:
        def poke() -> None:
            self._advance(flow)

        if (stop := self.gaps.suspension(flow.ahead, flow.told)) is not None:
            flow.told = self.shard.next_offset - 1
            self._submit(flow, self.planner.suspended(stop, flow.ahead))
        while True:
            now = self.clock.now()
            events, wake = self.planner.next_events(flow, now, poke)
            for event in events:
                self._submit(flow, event)
            if not events:
                break
        if wake is not None:
            self._wake(flow, wake)

    def _submit(self, flow: Flow, event: RunEvent) -> None:
        if event.epoch != self.planner.epoch:
            event = replace(event, epoch=self.planner.epoch)
        self.lane.submit(event)
        slots, forgo = self.planner.slots_of(event, flow.ahead), self.planner.forgo_of(event, flow.ahead)
        flow.plan(event, self.clock.now(), slots, forgo)

    def _wake(self, flow: Flow, at: int) -> None:
        """Look at the run again at broker time ``at``. A timer that comes earlier is left: it sets the next one."""
        when = self.clock.local(at) + 0.001
        if flow.timer is not None and flow.timer.when() <= when:
            return
        if flow.timer is not None:
            flow.timer.cancel()
        flow.timer = self._loop.call_at(when, self._woken, flow)

    def _woken(self, flow: Flow) -> None:
        flow.timer = None  # it has rung: whatever is due later needs another
        self._advance(flow)

    # ---- acting

    def _begin_steps(self, flow: Flow) -> None:
        for step in flow.startable(self._may_overlap):
            run = flow.run if step.committed else flow.ahead
            step.task = self._spawn(self._perform(flow, step, run))
            if step.slots is self.resources.last_slots:
                self._loop.call_later(PROBATION_SECONDS, step.give)

    @property
    def _may_overlap(self) -> bool:
        """Whether a step may run ahead of the log: not where a newer lease than ours was read."""
        return self.resources.overlap and not self.draining and self.shard.epoch == self.planner.epoch

    def _lease_is_fresh(self) -> bool:
        return self._now() - self.grant().at < self.resources.silence_seconds

    async def _perform(self, flow: Flow, step: Step, run: Run) -> None:
        if not self._lease_is_fresh():  # the process may have stood still since the step was told to begin
            step.task, self._stalled = None, True
            return
        start = step.start
        if isinstance(start, ModelStepStarted):
            self._ended(flow, step, await call_model(self.resources, self.clock, run, start))
        else:
            self._ended(flow, step, await call_tool(self.resources, run, start))

    def _ended(self, flow: Flow, step: Step, end: StepEnded) -> None:
        if flow.hand.get(step.attempt) is not step or step.end is not None:
            self.resources.observer.late(flow.run.id, end)  # the run went on without it, or it was aborted and did not heed that
            return
        step.ended(end)
        if not self.owned:
            return  # kept in hand: the next marker's echo submits it
        self._submit(flow, end)
        self._advance(flow)

    def _check_quiet(self) -> None:
        if self.draining and self.lane.idle and not any(flow.working for flow in self.flows.values()):
            self._quiet.set()
