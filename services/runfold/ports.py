"""Where the engine meets the world: one Protocol each, and its docstring is the contract its adapters are tested against.

Everything ``async`` runs on the worker's event loop and never blocks it. Nothing here is safe to call from another thread unless
its docstring says so.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from runfold.core.conversation import Message
from runfold.core.errors import LogError
from runfold.core.events import Command, Delivery, OwnerEvent, Record, SideEffect, ToolStatus, Unreadable, Usage
from runfold.core.run import Run
from runfold.core.shard import Ignored

# ---- the log


@dataclass(frozen=True, slots=True)
class Position:
    """What the group's offset says of a partition: read on at ``next``; folding must start at ``low``."""

    next: int = 0
    low: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """What the keeper says this worker may own. Plain data: it travels down a pipe.

    ``leaving`` are partitions that the group asks back: finish what runs, start nothing, let go. A partition in neither set is
    lost: drop it at once. ``proof`` is the group metadata, opaque bytes that the log checks in each append. ``at`` is
    CLOCK_MONOTONIC seconds, the same clock in every process of this machine. ``orphaned`` are those of the partitions that the
    worker before this one held when it died, at ``died_at``.
    """

    partitions: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    proof: bytes = b""
    at: float = 0.0
    orphaned: frozenset[int] = frozenset()
    died_at: float = 0.0


class Appender(Protocol):
    """The right to append to one partition, until somebody fences it."""

    async def append(self, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        """Append all of ``events`` in one transaction, together with the group's offset for the partition.

        Returns when the log acknowledged the commit. That proves nothing: act when the records are read back. Calls must not
        overlap. Ends within a bounded time of its own (about 10 s at worst), whatever the broker does.

        Raises `Fenced` when a newer `Log.fence` of this partition exists, `Expelled` when the group refuses ``proof`` (also when
        it is not a joined member's), `LogUnavailable` otherwise. After any of these the outcome is unknown and the appender is
        dead: every later call raises `LogError`; only a new `Log.fence` helps. Raises `TooLarge` when the events are more than
        one transaction may hold (2 MB encoded): then nothing happened, and fewer can be appended.
        """
        ...

    def drop(self) -> None:
        """Forget the appender, without aborting what is open: the next `Log.fence` settles it. Idempotent, does not block."""
        ...


class Reading(Protocol):
    """Committed records of one partition in offset order, from a given offset on, for ever."""

    @property
    def taken(self) -> int:
        """Bytes of the records handed over so far, about."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Delivery]]:
        """Batches, none empty. Records of aborted transactions never appear; those of open ones only once committed.

        A record that an appender of this process wrote, read back, carries the very event object that was appended, as long as
        that appender is not superseded by a newer one of this process *and* gone from memory; else an equal one.
        """
        ...

    async def close(self) -> None:
        """Stop reading; pending and later iterations end. Idempotent."""
        ...


class Log(Protocol):
    """A worker process's access to the one topic.

    The contract (tests/contract/test_log.py runs it against every implementation):

    1. After ``fence(p)`` returns, no transaction of an earlier appender of ``p`` (of any process) can commit any more, and the
       outcome of each is settled: read_committed readers see all of it or nothing.
    2. An append is all or nothing, in order, contiguous in offset order except for records of others.
    3. ``position(p)`` never waits for open transactions, and returns a position that some append wrote: the newest once
       ``fence(p)`` has returned, possibly an older one otherwise.
    4. Offsets grow, with gaps. Timestamps are the broker's.
    """

    @property
    def partitions(self) -> int:
        """How many partitions the topic has. Fixed for the life of the topic."""
        ...

    async def fence(self, partition: int) -> Appender:
        """Become the only one who can append to ``partition``. Raises `LogUnavailable`."""
        ...

    async def position(self, partition: int) -> Position:
        """What the last append left. ``Position()`` when there was none. Raises `LogUnavailable`."""
        ...

    async def read(self, partition: int, offset: int) -> Reading:
        """Read ``partition`` from ``offset`` on. At most one reading per partition and `Log`."""
        ...

    async def dead_letter(self, unreadable: Unreadable) -> None:
        """Put a copy of a record into the dead-letter topic, with where it came from. Raises `LogUnavailable`."""
        ...

    async def close(self) -> None:
        """Stop everything without waiting for the broker; open transactions are left to the next `fence`."""
        ...


class Membership(Protocol):
    """The keeper's seat in the consumer group. Blocking; one thread calls it, for ever the same one."""

    @property
    def owned(self) -> frozenset[int]:
        """Partitions the group gives this member, less those being revoked."""
        ...

    @property
    def proof(self) -> bytes:
        """Fresh group metadata; b"" while not joined."""
        ...

    def poll(self, timeout: float) -> None:
        """Let the group speak: runs ``revoked`` (see `join`) inside. ``timeout`` in seconds. Raises `LogError` when the seat is
        lost for good, `ConfigError` when it is refused; either way the process must end."""
        ...

    def join(self, revoked: Callable[[frozenset[int]], None]) -> None:
        """Ask for a seat. ``revoked(partitions)`` is called when partitions are to be let go, and may block (30 s) until the
        worker has; it is not called for partitions that are already lost."""
        ...

    def leave(self) -> None:
        """Give everything back (``revoked`` runs) and leave the group at once. A seat that is being left is not kept alive: what
        takes long must be done before."""
        ...


class Commands(Protocol):
    """Where anyone writes commands. Safe to call from any task of one loop."""

    async def send(self, command: Command) -> tuple[int, int]:
        """Write one command to its run's partition; (partition, offset) once the log has it on all in-sync replicas.

        Raises `LogUnavailable` within 10 s, `TooLarge` when it does not fit into one record: then nothing was written."""
        ...

    async def close(self) -> None: ...


class Tail(Protocol):
    """Reads the end of a partition for readers of the projection: what is in the log but not in the tables yet."""

    def partition_of(self, run_id: str) -> int: ...

    async def records(self, run_id: str, after: int) -> list[Record]:
        """Records of one run with an offset >= ``after`` up to the end as of now: all commands, and events that are committed.

        A command counts as soon as `Commands.send` has returned, also when a transaction before it is still open: such a one may
        stay open for long after its owner died, and a run that was accepted meanwhile must not look unknown. Events behind it
        may be missing. Raises `LogUnavailable`."""
        ...

    async def behind(self, reached: Mapping[int, int]) -> float:
        """How many seconds ago the oldest committed record was written that a reader has not reached; 0.0 when there is none.

        ``reached``: the next offset by partition; a partition that is not named is not begun. Markers and aborted records are
        nothing to reach; nor is, yet, what stands behind an open transaction. The age is the difference of the broker's clock
        when it was written and the clock here now, never negative. Ends within 3 s. Raises `LogUnavailable`."""
        ...

    async def close(self) -> None: ...


# ---- the model


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One attempt of one model step. Texts are JSON, see `AgentDefinition`."""

    run_id: str
    seq: int
    attempt: int
    model: str
    max_tokens: int
    system_json: str
    tools_json: str
    options_json: str
    messages: tuple[Message, ...]
    cache_ttl: str = "off"
    heard: Callable[[str], None] | None = field(default=None, compare=False)  # is told the answer's text while it arrives


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A complete answer: message_stop seen, every block closed, stop_reason set."""

    content_json: str  # array of content blocks, value-identical to what was received
    stop_reason: str
    usage: Usage
    model: str
    stop_details_json: str | None = None
    message_id: str | None = None
    request_id: str | None = None
    modifiers: dict[str, str] | None = None  # what else the price depends on: what ``usage`` has no place for


class Model(Protocol):
    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Call the model once: no retry inside. Raises `ModelFailure` and nothing else.

        Cancelled, it closes the connection within 500 ms. ``request.heard``, where there is one, gets the text of the answer in
        pieces, in order, as they arrive, and none after the end; also those of an answer that fails later. A model that does not
        stream may tell nothing."""
        ...


# ---- live text


class LiveEnd(StrEnum):
    """How an attempt ended of which text was shown."""

    COMPLETE = "COMPLETE"  # the answer is whole, and goes to the log
    FAILED = "FAILED"
    CUT = "CUT"  # aborted by the worker: cancelled, out of time, or no longer the owner


@dataclass(frozen=True, slots=True)
class LiveText:
    """A piece of what a model says, while it says it. No record of the log.

    Text of (``seq``, ``attempt``) is void once a piece of a later attempt is there, or an ``end`` other than COMPLETE."""

    run_id: str
    seq: int
    attempt: int
    index: int  # within the attempt, from 0: what is missing shows as a gap
    text: str
    end: LiveEnd | None = None  # None: more may come


class Live(Protocol):
    """Where pieces of live text are shown to whoever watches. Lossy: nothing that decides may read it."""

    def show(self, piece: LiveText) -> None:
        """Take one piece and return at once, whatever the other side does: never raises, never blocks. Pieces of a run arrive in
        the order in which they were shown. One that does not fit, or cannot be delivered in a few seconds, is dropped and
        counted. Called on the loop."""
        ...


class LiveReader(Protocol):
    """The live text of one run, for a program that watches. Blocking; one thread calls it, for ever the same one."""

    def read(self, seconds: float) -> list[LiveText]:
        """What was shown since the last call, in order; waits up to ``seconds`` for the first piece. Empty also when nobody
        answers. Never raises."""
        ...

    def close(self) -> None: ...


# ---- tools


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What the engine must know of a tool before it runs it."""

    side_effect: SideEffect = SideEffect.NONE
    repeatable: bool = True  # whether a call whose outcome is unknown may be made again under the same key
    parallel: bool = True  # whether it may run beside other calls of its turn


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    run_id: str
    seq: int
    model_seq: int
    tool_use_id: str
    name: str
    input_json: str
    idempotency_key: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ToolResult:
    """``content_json`` is what the model will see, final: cut, redacted, encodable. Never an empty string."""

    status: ToolStatus
    content_json: str


class Tools(Protocol):
    def policy(self, name: str) -> ToolPolicy:
        """For a name that does not exist: the default policy (its call only returns an error)."""
        ...

    async def call(self, request: ToolCallRequest) -> ToolResult:
        """Run a tool once. Never raises but CancelledError: whatever goes wrong is a result with a status other than DONE.

        Ends within the tool's timeout and one second, also when the tool ignores it. A timeout is TIMED_OUT."""
        ...


# ---- reads


class ReadModel(Protocol):
    """What the projector made of the log, for the API. Rows are plain dicts with the SQL column names.

    Everything here raises `ReadUnavailable` when the database does not answer in a few seconds."""

    async def run(self, run_id: str) -> dict[str, Any] | None: ...

    async def steps(self, run_id: str) -> list[dict[str, Any]]:
        """In seq order."""
        ...

    async def runs(
        self,
        *,
        limit: int,
        before: tuple[Any, str] | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[dict[str, Any]]:
        """Newest first by (requested_at, id), those strictly before ``before``: keyset pages."""
        ...

    async def applied(self, partition: int) -> int:
        """The next offset the projector will read of a partition (0 at the start)."""
        ...

    async def reached(self) -> dict[int, int]:
        """`applied` of every partition at once; one that was never begun may be missing."""
        ...

    async def stalled(self, seconds: float) -> int:
        """How many runs that are neither final nor suspended made no progress in the last ``seconds``, as the tables know them.

        A run that waits until it may try a model step again counts from then on."""
        ...

    async def close(self) -> None: ...


# ---- watching


class Failover(NamedTuple):
    """For how many seconds nobody carried a partition, and how that is known (`runfold.worker.takeover`)."""

    since: Literal["death", "last_event"]
    seconds: float


class Observer(Protocol):
    """What the worker tells those who watch. Never raises, never blocks; called on the loop, often: be quick."""

    def applied(self, record: Record, run: Run) -> None:
        """A record of a run on an owned partition was read back and changed ``run`` (given as it is now)."""
        ...

    def resumed(self, run: Run) -> None:
        """An open run that had begun came with a partition from another owner (or from this worker's predecessor)."""
        ...

    def ignored(self, record: Record, why: Ignored) -> None:
        """A record on an owned partition, not seen before, changed no run."""
        ...

    def unreadable(self, delivery: Unreadable) -> None:
        """A record on an owned partition, not seen before, could not be read; `buried` follows, but for null values."""
        ...

    def acquired(self, partition: int, epoch: int, records: int, seconds: float) -> None:
        """The partition is owned: the fold read ``records``; ``seconds`` since the takeover began."""
        ...

    def took_over(self, partition: int, fold_seconds: float, failover: Failover | None) -> None:
        """Right after `acquired`, but not where it only mended our own lane: ``fold_seconds`` from the low watermark to our
        marker; ``failover`` where another owner had failed."""
        ...

    def late(self, run_id: str, result: OwnerEvent) -> None:
        """A step ended when its run had gone on, or ended, without it. The result is dropped."""
        ...

    def buried(self, delivery: Unreadable) -> None:
        """A copy of what could not be read is in the dead-letter topic."""
        ...

    def released(self, partition: int) -> None:
        """This worker does nothing more for the partition, and holds it no more."""
        ...

    def reset(self, partition: int, error: LogError) -> None:
        """The append path of a partition broke and is being taken over again."""
        ...

    def committed(self, partition: int, events: int, commit_seconds: float, echo_seconds: float) -> None:
        """A transaction was committed and read back: time until the acknowledgement, and from there until the echo."""
        ...
