"""Where faults are made: a topic and a group of their own, workers as processes, a load, and somebody who watches the log.

    async with ground(bootstrap, root, seed=1, plan=Plan(1000, 12, 2, 6)) as field:
        await field.start("worker-A", "worker-B")
        field.load.top_up()
        ...
        field.judge(report)
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from uuid import uuid4

from runfold.audit import Auditor
from runfold.config import Settings
from runfold.core.events import Delivery
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands, create_topic
from runfold.log.kafka.source import KafkaSource
from runfold.log.partitioner import partition_of
from tests.cases.harness_processes import Processes, slowness
from tests.changes import Changes
from tests.chaos import ledger, verdicts
from tests.chaos.figures import Report
from tests.chaos.lean import LEAN
from tests.chaos.ledger import Ledger
from tests.chaos.load import Load, Plan
from tests.chaos.watcher import Lease, Watcher

ENTRY = ("-c", "from tests.chaos.worker_process import main; main()")
APP = "tests.chaos.worker_process:app"
HERE: Mapping[str, str] = {}
START_SECONDS = 90.0  # for workers, which have much to import on a busy machine
PATIENCE = 30.0  # for what must come
AUDIT_SECONDS = 30.0  # without a record before the end
FIXED = {"RUNFOLD_LOG_FORMAT": "ecs", "ANTHROPIC_API_KEY": "unused"}


class Ground:
    """Made by `ground`. What is waited for is looked at again at every batch of records."""

    def __init__(self, settings: Settings, partitions: int, root: Path, draw: Random, environment: Mapping[str, str]) -> None:
        self.settings, self.partitions, self.draw = settings, partitions, draw
        self._changes = Changes()
        self.ledger = Ledger(root / "ledger")
        self.watcher = Watcher(settings, self._changed)
        marker = str(self.ledger.path)
        self.processes = Processes(root, {**environment, ledger.PATH: marker}, f"{ledger.PATH}={marker}", self._changed)
        self.load: Load | None = None

    def _changed(self) -> None:
        if self.load is not None:
            self.load.top_up()
        self._changes.tell()

    # ---- what a check does

    async def start(self, *names: str, where: Mapping[str, str] = HERE, **settings: object) -> None:
        """Workers, side by side, until each owns a partition. ``settings`` are those of `Settings`, ``where`` other variables."""
        environment = {f"RUNFOLD_{key.upper()}": str(value) for key, value in settings.items()}
        for name in names:
            self.processes.start(name, entry=ENTRY, app=APP, environment={**environment, **where})
        await self.until("workers to own partitions", lambda: all(map(self.watcher.owned_by, names)), START_SECONDS * slowness())

    async def until(self, what: str, true: Callable[[], object], seconds: float = PATIENCE) -> bool:
        """Whether ``true()`` within ``seconds``. Raises when a keeper ends that the check has not ended."""

        def answered() -> bool:
            if true():
                return True
            if self.watcher.failure is not None:
                raise self.watcher.failure
            if ends := self.processes.ends():
                raise AssertionError(f"expected {what}\n" + "\n".join(ends))
            return False

        try:
            await self._changes.until(answered, seconds)
        except TimeoutError:
            return False
        return True

    async def balanced(self) -> None:
        """Until each worker owns its share, and runs go on everywhere: no rebalance is under way."""
        names = self.processes.names
        share = self.partitions // len(names)

        def shared() -> bool:
            owned = [self.leases_of(name) for name in names]
            return all(len(leases) >= share and all(lease.moved_at for lease in leases) for leases in owned)

        assert await self.until("workers to share the partitions", shared, START_SECONDS), "they do not"

    async def busy(self) -> None:
        """Until as many runs as planned are open and each has begun, and the workers share the partitions."""
        assert self.load is not None
        wanted, load = self.load.plan.runs, self.load
        load.top_up()

        def all_begun() -> bool:
            at = list(self.watcher.open.values())
            return len(load.posted) >= wanted and len(at) >= 0.9 * wanted and len(self.watcher.starts) >= wanted

        assert await self.until("the load to flow", all_begun, START_SECONDS), f"{len(self.watcher.starts)} steps, no more"
        await self.balanced()

    async def moved(self, before: Iterable[Lease], seconds: float = PATIENCE) -> dict[int, float]:
        """Wait for the first event of a run under a newer lease of these partitions; when each came, as far as they came."""
        leases = list(before)

        def times() -> dict[int, float]:
            found = {lease.partition: self.watcher.moved_since(lease.partition, lease.epoch) for lease in leases}
            return {partition: at for partition, at in found.items() if at is not None}

        await self.until("the partitions to go on", lambda: len(times()) == len(leases), seconds)
        return times()

    def leases_of(self, worker: str) -> list[Lease]:
        return [self.watcher.leases[partition][-1] for partition in sorted(self.watcher.owned_by(worker))]

    def partition_of(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self.partitions)

    async def wait(self, seconds: float) -> None:
        """Let the load flow."""
        await self.until("time to pass", lambda: False, seconds)

    # ---- verdicts that every check asks for

    async def judge(
        self, report: Report, *, killed: Iterable[int] = (), cancelled: Container[str] = (), ended: bool = False
    ) -> None:
        """What must hold whatever was done.

        ``killed``: worker processes that could not finish; ``cancelled``: runs that need not succeed; ``ended``: wait for all.
        """
        await self._no_run_is_lost(report, cancelled, ended)
        verdicts.no_answer_paid_twice(report, self.ledger.acts("call"), self.watcher.used, set(killed))
        report.none("stale records", self.watcher.stale)
        report.none("unreadable", self.watcher.unreadable)
        records, violations = await asyncio.to_thread(audit, self.settings)
        report.say(f"audit of {records} records")
        report.none("violations", violations)

    async def _no_run_is_lost(self, report: Report, cancelled: Container[str], ended: bool) -> None:
        """Every run that the log has acknowledged goes on, or ends."""
        assert self.load is not None
        load = self.load
        if ended:
            await load.stop()

        since, before = time.monotonic(), set(load.posted)

        def standing() -> list[str]:
            open_ = (run_id for run_id in before if run_id not in self.watcher.finished)
            return [run_id for run_id in open_ if ended or self.watcher.open.get(run_id, 0.0) < since]

        await self.until("every run to go on", lambda: not standing(), 2 * load.plan.slowest + PATIENCE + ended * PATIENCE)
        report.none("runs not ended" if ended else "runs standing still", standing())
        judged = [run_id for run_id in load.posted if run_id not in cancelled]
        finished, suspended = self.watcher.finished, self.watcher.suspended
        verdicts.all_succeeded(
            report,
            {run_id: finished[run_id] for run_id in judged if run_id in finished},
            {run_id: suspended[run_id] for run_id in judged if run_id in suspended},
        )


def audit(settings: Settings) -> tuple[int, list[str]]:
    """What `runfold verify-log` says of the topic: how many records, and what they break. Blocks."""
    auditor = Auditor()
    auditor.take(everything(settings))
    return sum(part.records for part in auditor.partitions.values()), [str(each) for each in auditor.violations]


def everything(settings: Settings) -> Iterator[Delivery]:
    """The topic from its beginning to its end as of now. Blocks."""
    with closing(KafkaSource(settings, Codec())) as source:
        source.assign(dict.fromkeys(range(source.partitions), 0))
        ends, deadline = dict(source.ends()), time.monotonic() + AUDIT_SECONDS
        while any(source.reached()[partition] < end for partition, end in ends.items()):
            if batch := source.poll(0.2):
                yield from batch
                deadline = time.monotonic() + AUDIT_SECONDS
            assert time.monotonic() < deadline, f"the log cannot be read to its end: {source.reached()} of {ends}"


def environment_of(settings: Settings) -> dict[str, str]:
    """Of every worker: where the log is, and the clocks that it shares with the checks."""
    names = ("bootstrap", "topic", "group", "session_timeout_ms", "heartbeat_ms", "max_model_calls")
    return {f"RUNFOLD_{name.upper()}": str(getattr(settings, name)) for name in names} | FIXED


@asynccontextmanager
async def ground(
    bootstrap: str,
    root: Path,
    *,
    seed: int,
    plan: Plan,
    partitions: int = 12,
    replication: int = 1,
    session_ms: int = 6000,
    heartbeat_ms: int = 250,
    lean: bool = True,
) -> AsyncIterator[Ground]:
    """A fresh topic and everything but the workers, which are `lean` or the real size. At the end no process is left."""
    name = f"chaos-{uuid4().hex[:8]}"
    root = root / name
    root.mkdir(parents=True)
    settings = Settings(
        bootstrap=bootstrap,
        topic=name,
        group=name,
        max_model_calls=10_000,
        session_timeout_ms=session_ms,
        heartbeat_ms=heartbeat_ms,
    )
    await asyncio.to_thread(create_topic, settings, partitions, replication)
    draw = Random(seed)
    field = Ground(settings, partitions, root, draw, environment_of(settings) | ({LEAN: "1"} if lean else {}))
    commands = KafkaCommands(settings, Codec())
    field.load = Load(plan, partitions, commands, draw, field.watcher.finished.keys())
    field.watcher.start()
    try:
        yield field
    except BaseException:
        for worker in field.processes.names:  # they may be in no state to end well, and what went wrong is to be seen
            field.processes.kill_keeper(worker)
        raise
    finally:
        field.load.flowing = False
        left = await field.processes.close()
        await field.watcher.stop()
        await commands.close()
    assert not left, left
