"""Watches a simulated world while it runs: the log at every commit, and every call of a model or a tool when it is made.

The log must keep what `runfold.audit` checks. Beside that:

L1  the group's offset never goes backwards, and a fold from its low watermark misses nothing of an open run
L2  a record written in an owner's name under an old lease changes nothing
W1  no model or tool is called before its step's start is in the log; each attempt is called once, by the worker that wrote it.
    In a world that overlaps, one call of a run may be ahead of the log if it is harmless: of the model, of a tool that reads;
    also one of an owner that was frozen and does not know yet that it is none
W2  who holds the newest lease calls no model for a step that has its answer, and sends the conversation that the log folds to
W3  a tool that cannot be repeated runs at most once, unless a person resumed the run
W4  nobody fights for a partition: no worker fences one more than `FENCES` times within `FENCE_SECONDS`
W5  a worker whose keeper has fallen silent starts nothing new
W6  a tool that kills who calls it is called `MAX_STARTS` times, two more where worlds overlap, until a person is asked
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

from runfold.audit.partition import PartitionAudit
from runfold.core.decide import MAX_STARTS
from runfold.core.events import (
    Delivery,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Problem,
    Record,
    RunResumed,
    SideEffect,
    StepAborted,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
)
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.log.memory.partition import Partition
from runfold.log.wire import read
from runfold.ports import ModelRequest, Position, ToolCallRequest, ToolPolicy
from runfold.simulation.broker import CODEC
from runfold.simulation.loop import Process, current_process

FENCES, FENCE_SECONDS = 20, 5.0
SILENCE_SECONDS = 3.0  # the worker's own
DEADLY = "deadly"
FORGED = "forged, in an owner's name and under an old lease"

Attempt = tuple[str, int, int]  # run, seq, attempt


class Book:
    """What the log of one partition says, to readers of committed records."""

    def __init__(self, partition: int) -> None:
        self.shard = Shard(partition)
        self.ended: dict[str, Run] = {}
        self.epoch, self.owner = -1, ""  # the newest lease, and the name of its worker
        self.position = Position()
        self._audit = PartitionAudit(partition)

    def take(self, delivery: Delivery, forged: bool) -> Iterator[str]:
        """What a record breaks."""
        found = self._audit.take(delivery)
        if isinstance(delivery, Unreadable):
            self.shard.next_offset = delivery.offset + 1
            return
        if found is not None and not (forged and found.invariant == "no_stale_epoch"):
            yield str(found)
        if isinstance(delivery.event, LeaseAcquired):
            self.epoch, self.owner = delivery.offset, delivery.event.worker
        outcome = self.shard.apply(delivery)
        if isinstance(outcome, Run) and forged:
            yield f"L2: {at(delivery)} is {FORGED}, and changes run {outcome.id}"
        elif isinstance(outcome, Run) and outcome.status.final:
            self.ended[outcome.id] = outcome

    def moved(self, position: Position) -> Iterator[str]:
        """What a committed offset breaks."""
        before, self.position = self.position, position
        if position.next < before.next:
            yield f"L1: the group's offset went back from {before.next} to {position.next}"
        oldest = min((run.fold_from for run in self.shard.runs.values()), default=position.next)
        if position.low > oldest:
            yield f"L1: the low watermark is {position.low}, an open run needs {oldest}"


class Referee:
    """``complain`` is told of everything that does not hold, ``note`` of everything that is worth reading."""

    def __init__(
        self,
        partitions: int,
        overlap: bool,
        now: Callable[[], float],
        complain: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self.books = [Book(number) for number in range(partitions)]
        self.forged: set[tuple[int, int]] = set()
        self.unreadable: list[Unreadable] = []
        self.parked: set[str] = set()  # what the keys say of records that a newer build may be able to read
        self.records: Counter[str] = Counter()  # by type
        self.executions: Counter[str] = Counter()  # by idempotency key
        self.resumed: Counter[str] = Counter()  # by run
        self.aborted: set[Attempt] = set()  # by owners that let go, as the log has it
        self.calls = 0  # of the model
        self._overlap, self._now, self._complain, self._note = overlap, now, complain, note
        self._read_to = [0] * partitions
        self._writers: dict[Attempt, str] = {}  # by start that is in the log: the worker that wrote it
        self._called: Counter[Attempt] = Counter()
        self._ahead: dict[tuple[str, str], Attempt] = {}  # by process and run: the last call ahead of the log, until a reset
        self._were_ahead: set[Attempt] = set()
        self._answered: set[Attempt] = set()
        self._granted: dict[str, float] = {}  # when the keeper said what a worker has heard last
        self._fences: defaultdict[tuple[int, str], deque[float]] = defaultdict(lambda: deque(maxlen=FENCES))

    # ---- the log

    def changed(self, partition: Partition) -> None:
        """Readers may see more of ``partition`` than before."""
        number, book = partition.number, self.books[partition.number]
        for stored in partition.visible(self._read_to[number]):
            self._read_to[number] = stored.raw.offset + 1
            self._see(book, read(stored.raw, CODEC, len(self.books)))
        if partition.position != book.position:
            for complaint in book.moved(partition.position):
                self._complain(f"partition {number}: {complaint}")

    def _see(self, book: Book, delivery: Delivery) -> None:
        forged = (delivery.partition, delivery.offset) in self.forged
        self._note(_line(delivery, forged))
        for complaint in book.take(delivery, forged):
            self._complain(complaint)
        if isinstance(delivery, Record):
            self._count(book, delivery)
        elif delivery.problem is Problem.UNKNOWN_SCHEMA and delivery.key:
            self.parked.add(delivery.key.decode())
        elif delivery.problem is not Problem.NULL_VALUE:
            self.unreadable.append(delivery)

    def _count(self, book: Book, record: Record) -> None:
        event = record.event
        self.records[type(event).__name__] += 1
        match event:
            case ModelStepStarted() | ToolStepStarted():
                self._writers[event.run_id, event.seq, event.attempt] = book.owner
            case ModelStepCompleted() | ModelStepFailed() | ToolStepFinished():
                self._answered.add((event.run_id, event.seq, event.attempt))
            case StepAborted():
                self.aborted.add((event.run_id, event.seq, event.attempt))
            case RunResumed():
                self.resumed[event.run_id] += 1
            case _:
                pass

    def fenced(self, partition: int) -> None:
        """Somebody fenced ``partition``."""
        who = current_process().name
        self._note(f"{who} fences partition {partition}")
        self._ahead = {key: attempt for key, attempt in self._ahead.items() if key[0] != who}
        times = self._fences[partition, who]
        times.append(self._now())
        if len(times) == FENCES and times[-1] - times[0] < FENCE_SECONDS:
            self._complain(f"W4: {who} fenced partition {partition} {FENCES} times in {times[-1] - times[0]:.1f} s")

    def run(self, run_id: str) -> Run | None:
        """What the log says of a run now, ended ones too."""
        for book in self.books:
            if (run := book.shard.runs.get(run_id) or book.ended.get(run_id)) is not None:
                return run
        return None

    # ---- the world

    def granted(self, who: str, at: float) -> None:
        """A worker process hears of a grant that its keeper gave ``at``."""
        self._granted[who] = at

    def model_called(self, request: ModelRequest) -> None:
        self.calls += 1
        attempt = request.run_id, request.seq, request.attempt
        run = self._call(attempt, "the model", harmless=True)
        if attempt not in self._writers or run is None or self.books[run.partition].owner != current_process().name:
            return  # a call of one who does not know yet that others took over
        if run.step.seq > request.seq:
            self._complain(f"W2: step {request.seq} of {run.id} has its answer, and its owner asks again")
        elif run.messages != request.messages:
            self._complain(f"W2: step {request.seq} of {run.id}: the request is not what the log folds to")

    def tool_called(self, request: ToolCallRequest, policy: ToolPolicy) -> None:
        harmless = policy.side_effect in (SideEffect.NONE, SideEffect.READ)
        self._call((request.run_id, request.seq, request.attempt), request.name, harmless)
        self.executions[request.idempotency_key] += 1
        times = (MAX_STARTS + 2 * self._overlap) * (1 + self.resumed[request.run_id])
        if request.name == DEADLY and self.executions[request.idempotency_key] > times:
            self._complain(f"W6: {request.idempotency_key} kills its worker for the {times + 1}th time")
        if not policy.repeatable and self.executions[request.idempotency_key] > 1 + self.resumed[request.run_id]:
            self._complain(f"W3: {request.name} cannot be repeated and runs again: {request.idempotency_key}")

    def _call(self, attempt: Attempt, what: str, harmless: bool) -> Run | None:
        who, writer = current_process().name, self._writers.get(attempt)
        self._note(f"{who} calls {what} for {attempt}")
        if writer != who and self._overlap and harmless and (writer is None or self._is_stale(who, attempt[0])):
            self._run_ahead(who, attempt, what)
        elif writer is None:
            self._complain(f"W1: {who} calls {what} for {attempt}, whose start is not in the log")
        elif writer != who:
            self._complain(f"W1: {who} calls {what} for {attempt}, which {writer} started")
        elif attempt in self._called and attempt not in self._were_ahead:
            self._complain(f"W1: {who} calls {what} for {attempt} a second time")
        if self._is_deaf(current_process()):
            self._complain(f"W5: {who} calls {what} for {attempt}; its keeper spoke last at {self._granted[who]:.3f} s")
        self._called[attempt] += 1
        return self.run(attempt[0])

    def _is_stale(self, who: str, run_id: str) -> bool:
        """Whether a process has lost a run's partition, perhaps without knowing: it runs ahead of a log that it cannot write."""
        run = self.run(run_id)
        return run is not None and self.books[run.partition].owner != who

    def _run_ahead(self, who: str, attempt: Attempt, what: str) -> None:
        before = self._ahead.get((who, attempt[0]))
        if before is not None and before not in self._writers:
            self._complain(f"W1: {who} calls {what} for {attempt} while {before} is ahead of the log")
        self._ahead[who, attempt[0]] = attempt
        self._were_ahead.add(attempt)

    def in_vain(self) -> list[Attempt]:
        """Attempts that were made and of whose end the log does not know, or that were made twice."""
        told = self._answered | self.aborted
        return [attempt for attempt, times in self._called.items() if times > 1 or attempt not in told]

    def _is_deaf(self, process: Process) -> bool:
        """Whether the last grant is too old to act on, and was when the process last had to decide."""
        until = self._granted[process.name] + SILENCE_SECONDS
        return self._now() > until and process.thawed_at <= until


def at(record: Record) -> str:
    return f"{type(record.event).__name__} at {record.partition}/{record.offset}"


def _line(delivery: Delivery, forged: bool) -> str:
    if isinstance(delivery, Unreadable):
        return f"{delivery.partition}/{delivery.offset} cannot be read: {delivery.problem}"
    event = delivery.event
    facts = [f"{name}={getattr(event, name)}" for name in ("seq", "attempt", "epoch", "status", "reason") if hasattr(event, name)]
    who = event.worker if isinstance(event, LeaseAcquired) else event.run_id[:8]
    return " ".join([at(delivery), who, *facts, *([FORGED] if forged else [])])
