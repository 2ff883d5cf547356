"""One open run in the hands of this worker: what the log says of it, what is planned beyond that, and what is being done."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from runfold.core.decide import Attempt
from runfold.core.events import (
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Record,
    RunEvent,
    RunSnapshotted,
    RunSuspended,
    SideEffect,
    Status,
    StepAborted,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.run import Run, evolve
from runfold.worker.slots import Slots

StepStarted = ModelStepStarted | ToolStepStarted
StepEnded = ModelStepCompleted | ModelStepFailed | ToolStepFinished | StepAborted | RunSuspended
HARMLESS = frozenset({SideEffect.NONE, SideEffect.READ})


@dataclass(slots=True)
class Step:
    """One attempt of a step, from the moment its start is submitted until its end is read back.

    ``committed``: the start is in the log, so the step may run. ``end``: how it ended; it survives a reset, for it was paid for.
    One that is begun and not committed is ahead of the log.
    """

    start: StepStarted
    slots: Slots | None  # one of them is taken for it
    committed: bool = False
    task: asyncio.Task[None] | None = None
    end: StepEnded | None = None
    forgo: Callable[[], None] | None = None  # called when it is dropped and had not begun

    @property
    def attempt(self) -> Attempt:
        return self.start.seq, self.start.attempt

    @property
    def begun(self) -> bool:
        return self.task is not None or self.end is not None

    @property
    def harmless(self) -> bool:
        """Whether nobody is hurt when it runs and the log never hears of it. A call of the model costs money, no more."""
        return isinstance(self.start, ModelStepStarted) or self.start.side_effect in HARMLESS

    @property
    def repeatable(self) -> bool:
        return isinstance(self.start, ModelStepStarted) or self.start.repeatable

    def ended(self, end: StepEnded) -> None:
        self.end, self.task = end, None
        self.give()

    def abort(self) -> StepAborted:
        if self.task is not None:
            self.task.cancel()
        start = self.start
        end = StepAborted(run_id=start.run_id, epoch=start.epoch, seq=start.seq, attempt=start.attempt)
        self.ended(end)
        return end

    def drop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            self.task = None
        elif self.end is None and self.forgo is not None:
            self.forgo()
        self.give()

    def give(self) -> None:
        """Return the slot. Idempotent."""
        if self.slots is not None:
            self.slots.give()
            self.slots = None


def is_open(run: Run, attempt: Attempt) -> bool:
    """Whether the log knows this attempt as started and not ended."""
    seq, number = attempt
    if run.step.open and (run.step.seq, run.step.attempt) == attempt:
        return True
    return any(call.open and call.seq == seq and call.attempt == number for call in run.calls)


@dataclass(slots=True)
class Flow:
    """``run`` advances only by what was read back; ``ahead`` is ``run`` with everything submitted since."""

    run: Run
    ahead: Run = field(init=False)
    unread: int = 0  # of our events of this run, submitted and not read back
    hand: dict[Attempt, Step] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    carried_at: int = -1  # where the head was when a snapshot of the run was last thought of
    told: int = -1  # up to this offset a suspension that is on its way speaks of what cannot be read
    held: bool = False  # back by a breaker, when it was last asked
    held_until: int = -1  # broker ms; time held back is not counted as time without progress
    moved: bool = False  # under this lease the run was brought forward: a step's result that we wrote is in the log

    def __post_init__(self) -> None:
        self.ahead = self.run

    def plan(self, event: RunEvent, now: int, slots: Slots | None, forgo: Callable[[], None] | None = None) -> None:
        """An event is submitted; ``slots`` is what it took one of, ``forgo`` is told if its step is dropped before it begins."""
        self.unread += 1
        if isinstance(event, RunSnapshotted):
            return  # it says what `ahead` is
        self.ahead = evolve(self.ahead, Record(event, self.run.partition, -1, now)) or self.ahead
        if isinstance(event, StepStarted):
            self.hand[event.seq, event.attempt] = Step(event, slots, forgo=forgo)

    def read(self, record: Record, run: Run, own: bool) -> None:
        """A record of this run was read and left it as ``run``."""
        self.run = run
        self.unread -= own
        self.moved = self.moved or (own and isinstance(record.event, ModelStepCompleted | ToolStepFinished))
        if self.unread <= 0:
            self.unread, self.ahead = 0, run
        elif not own:
            self.ahead = evolve(self.ahead, record) or self.ahead
        self._settle(record)

    def _settle(self, record: Record) -> None:
        match record.event:
            case ModelStepStarted() | ToolStepStarted() as event:
                step = self.hand.get((event.seq, event.attempt))
                if step is not None and step.start.epoch == event.epoch:  # else another owner made the same attempt
                    step.committed = True
            case ModelStepCompleted() | ModelStepFailed() | ToolStepFinished() | StepAborted() as event:
                self._let_go((event.seq, event.attempt))
            case RunSuspended(tool_use_id=str(tool_use)):
                for call in self.run.calls:
                    if call.id == tool_use:
                        self._let_go((call.seq, call.attempt))
            case _:
                pass

    def _let_go(self, attempt: Attempt) -> None:
        if (step := self.hand.pop(attempt, None)) is not None:
            step.drop()

    def begin_again(self, run: Run) -> tuple[list[StepEnded], Step | None]:
        """The partition was taken over (again): drop what the log does not know of.

        Returns what it must still be told: how steps ended, and the step that had begun ahead of it, now in nobody's hand.
        """
        self.run = self.ahead = run
        self.unread, self.told, self.moved, ahead = 0, -1, False, None
        for step in list(self.hand.values()):
            if step.begun and not step.committed and not isinstance(step.end, StepAborted):
                ahead = self.hand.pop(step.attempt)
            elif not (step.committed and is_open(run, step.attempt)):
                self._let_go(step.attempt)
        return [step.end for step in self.hand.values() if step.end is not None], ahead

    def startable(self, overlap: bool = False) -> list[Step]:
        """Steps that may begin: their start is in the log. With ``overlap`` one may be ahead of it, if it is harmless."""
        waiting = [step for step in self.hand.values() if not step.begun]
        ready = [step for step in waiting if step.committed]
        if ready or not waiting or not (overlap and self._may_run_ahead(waiting[0])):
            return ready
        return waiting[:1]

    def _may_run_ahead(self, step: Step) -> bool:
        """Not behind another one that is ahead, nor behind a result of its own kind that is not in the log: a death repeats one
        call of the model and one tool at most. And not before this owner has brought the run forward: a step that kills its
        worker at once takes the result before it along, is never counted, and the next owner would do the same. Nor before a
        resumption is in the log, nor behind a suspension over what cannot be read, which takes steps out of hand."""
        begun = [other for other in self.hand.values() if other.begun]
        behind = all(other.committed and type(other.start) is not type(step.start) for other in begun)
        return self.moved and self.told < 0 and self.run.status is Status.RUNNING and step.harmless and behind

    @property
    def working(self) -> bool:
        """Whether something is under way that should be in the log before the partition is let go."""
        return any(step.committed or step.begun for step in self.hand.values())

    def has_begun(self, start: StepStarted) -> bool:
        """Whether the step that ``start`` starts is under way, or has ended."""
        step = self.hand.get((start.seq, start.attempt))
        return step is not None and step.begun

    def forget(self, start: StepStarted) -> None:
        """The log will not hear of this start: it was taken back before it was written."""
        self._let_go((start.seq, start.attempt))

    def abort_steps(self) -> list[StepAborted]:
        """Abort what is under way, or about to be, its start being written.

        Returns what the log should be told: of what may be begun again."""
        aborted = []
        for step in [step for step in self.hand.values() if step.end is None]:
            if step.repeatable:
                aborted.append(step.abort())
            else:
                self._let_go(step.attempt)
        return aborted

    def stop_steps(self) -> None:
        """Abort what is under way. What has ended stays in hand: the log may still have to be told."""
        for step in list(self.hand.values()):
            if step.end is None:
                self._let_go(step.attempt)

    def drop(self) -> None:
        """Forget everything, aborting what is under way."""
        for attempt in list(self.hand):
            self._let_go(attempt)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
