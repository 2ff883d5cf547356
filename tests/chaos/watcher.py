"""The log as it is committed, and when each record could be seen: a thread that reads all partitions and counts nothing else."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from runfold.config import Settings
from runfold.core.errors import LogUnavailable
from runfold.core.events import (
    CommandRejected,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Record,
    RunEvent,
    RunFinished,
    RunRequested,
    RunSnapshotted,
    RunSuspended,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
)
from runfold.log.codec import codec_for
from runfold.log.kafka.source import KafkaSource

POLL_SECONDS = 0.2
RETRY_SECONDS = 0.2

Ended = ModelStepCompleted | ModelStepFailed | ToolStepFinished
Moved = ModelStepStarted | ToolStepStarted | RunFinished


@dataclass(frozen=True, slots=True)
class Lease:
    """``at`` and ``moved_at``: when the marker, and the first event of a run under it, could be seen; ``before``: when the last
    record of the owner before could."""

    partition: int
    epoch: int
    worker: str
    at: float
    before: float
    moved_at: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A run stood still after a step of its own."""

    run_id: str
    partition: int
    since: float
    until: float


class Watcher:
    """Reads from `start` to `stop`. All times are monotonic seconds. The loop is told of every batch."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        self._settings, self._changed = settings, changed
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-watcher", daemon=True)
        self.leases: dict[int, list[Lease]] = defaultdict(list)  # by partition
        self.stale: list[str] = []  # events of an older lease, seen after a newer one
        self.open: dict[str, float] = {}  # by run: when an owner last wrote of it, or when it was requested
        self.attempts: dict[str, int] = {}  # by run whose model is being asked: for the how many-th time
        self.suspended: dict[str, RunSuspended] = {}
        self.finished: dict[str, RunFinished] = {}
        self.finished_at: dict[str, float] = {}
        self.rejected: dict[str, float] = {}  # by command
        self.unreadable: list[Unreadable] = []
        self.steps: list[float] = []  # when each end of a step could be seen
        self.pauses: list[Pause] = []  # of runs whose next step did not begin together with the end of the last
        self.starts: dict[tuple[str, int, int], int] = {}  # (run, seq, attempt): epoch of the first start
        self.keys: dict[str, list[int]] = defaultdict(list)  # idempotency key: epochs of its starts
        self.used: set[str] = set()  # request ids of answers in the log
        self.last_write: dict[int, float] = {}  # by partition: when an owner last wrote
        self.failure: BaseException | None = None
        self._ended: dict[str, float] = {}
        self.ends: dict[int, int] = defaultdict(int)  # by partition: everything before this offset was seen

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def owned_by(self, worker: str) -> set[int]:
        """Partitions whose newest lease is this worker's."""
        return {partition for partition, leases in list(self.leases.items()) if leases[-1].worker == worker}

    def moved_since(self, partition: int, epoch: int) -> float | None:
        """When the first event of a run under a lease newer than ``epoch`` could be seen."""
        newer = (lease.moved_at for lease in list(self.leases[partition]) if lease.epoch > epoch)
        return next((at for at in newer if at is not None), None)

    # ---- on the thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._read()
                except LogUnavailable:
                    self._stop.wait(RETRY_SECONDS)  # a topic that was just made, or brokers that are away
        except Exception as error:
            self.failure = error

    def _read(self) -> None:
        with closing(KafkaSource(self._settings, codec_for(self._settings.registry_url, self._settings.topic))) as source:
            source.assign({partition: self.ends[partition] for partition in range(source.partitions)})
            while not self._stop.is_set():
                if batch := source.poll(POLL_SECONDS):
                    at = time.monotonic()
                    for delivery in batch:
                        self._take(delivery, at)
                    self._loop.call_soon_threadsafe(self._changed)

    def _take(self, delivery: Record | Unreadable, at: float) -> None:
        self.ends[delivery.partition] = delivery.offset + 1
        if isinstance(delivery, Unreadable):
            self.unreadable.append(delivery)
            return
        match delivery.event:
            case LeaseAcquired() as event:
                before = self.last_write.get(delivery.partition, at)
                self.leases[delivery.partition].append(Lease(delivery.partition, delivery.offset, event.worker, at, before))
                self.last_write[delivery.partition] = at
            case RunRequested() as event if event.run_id not in self.finished:  # one that was sent twice may end in between
                self.open.setdefault(event.run_id, at)
            case event if isinstance(event, RunEvent):
                self._event(event, delivery, at)

    def _event(self, event: RunEvent, record: Record, at: float) -> None:
        lease = self.leases[record.partition][-1]
        if event.epoch < lease.epoch:
            self.stale.append(f"{record.partition}/{record.offset} {type(event).__name__} of {event.epoch} after {lease.epoch}")
        elif lease.moved_at is None:
            self.leases[record.partition][-1] = replace(lease, moved_at=at)
        self.last_write[record.partition] = at
        if isinstance(event, RunSnapshotted):
            return
        self._step(event, record, at)
        if isinstance(event, RunFinished):
            self.open.pop(event.run_id, None)
            self.attempts.pop(event.run_id, None)
            self.finished[event.run_id] = event
            self.finished_at[event.run_id] = at
        elif event.run_id in self.open:
            self.open[event.run_id] = at

    def _step(self, event: RunEvent, record: Record, at: float) -> None:
        if isinstance(event, Moved) and (since := self._ended.pop(event.run_id, None)) is not None and at > since:
            self.pauses.append(Pause(event.run_id, record.partition, since, at))
        match event:
            case ModelStepCompleted() | ModelStepFailed() | ToolStepFinished():
                self.steps.append(at)
                self._ended[event.run_id] = at
                self.attempts.pop(event.run_id, None)
                if isinstance(event, ModelStepCompleted) and event.request_id:
                    self.used.add(event.request_id)
            case ModelStepStarted():
                self.starts.setdefault((event.run_id, event.seq, event.attempt), event.epoch)
                self.attempts[event.run_id] = event.attempt
            case ToolStepStarted():
                self.keys[event.idempotency_key].append(event.epoch)
            case CommandRejected():
                self.rejected.setdefault(event.command_id, at)
            case RunSuspended():
                self.suspended[event.run_id] = event
            case _:
                pass
