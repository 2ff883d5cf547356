"""Random runs on random workers in a world where anything may fail at any commit: what holds at the end.

Real SDK, strict fake API, real tools, the whole worker over the memory log. Each seed is a story of its own; it is printed, and
`pytest -k "[7]"` plays it again (the order of what happens on sockets aside).

At the end, when nothing moves any more: every oracle holds (every request was one the API takes, no answer was paid for twice …);
the fold of the log, from its beginning and from where a takeover would begin, is what the workers hold in memory; no tool that
cannot be repeated ran twice; nothing is left in anybody's hands, and no slot is lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest

from runfold.core import shard as shard_module
from runfold.core.errors import LogUnavailable
from runfold.core.events import (
    Command,
    OwnerEvent,
    Record,
    RunCancelRequested,
    RunRequested,
    RunResumeRequested,
    Status,
    ToolStepStarted,
)
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.log.memory import MemoryCommands, MemoryLog
from runfold.testing import Script
from runfold.worker import carrier
from tests.cases.engine_process import BACKOFF, Process
from tests.cases.engine_scene import Scene, stage
from tests.changes import Changes
from tests.property.random_scripts import random_script, random_tools

PARTITIONS = 3
RUNS = 9
ACCIDENTS = 8  # per story, at most
RATE = 0.2  # of commits that something happens at
PATIENCE = 30.0
RESUMED: dict[str, Any] = {  # what the oracles must know of runs that are resumed: what stopped them is tried again
    "discarded": frozenset({"max_tokens", "brand_new"}),
    "attempts": BACKOFF.attempts + ACCIDENTS,
}


class Follower:
    """Reads the log as anybody may, and knows when all runs have ended or wait for a person."""

    def __init__(self, scene: Scene) -> None:
        self.runs: dict[str, Run] = {}
        self._log = MemoryLog(scene.broker)
        self._changes = Changes()
        self._tasks = [asyncio.create_task(self._follow(number)) for number in range(PARTITIONS)]

    async def _follow(self, number: int) -> None:
        shard = Shard(number)
        async for batch in await self._log.read(number, 0):
            for delivery in batch:
                if isinstance(delivery, Record) and isinstance(run := shard.apply(delivery), Run):
                    self.runs[run.id] = run
            self._changes.tell()

    async def until_settled(self, ids: Sequence[str]) -> None:
        await self._changes.until(lambda: all(id_ in self.runs and _is_settled(self.runs[id_]) for id_ in ids), PATIENCE)

    async def close(self) -> None:
        await self._log.close()
        await asyncio.gather(*self._tasks)


def _is_settled(run: Run) -> bool:
    return run.status.final or run.status is Status.SUSPENDED


class Patient(MemoryCommands):
    """A client that tries again while the broker is away."""

    async def send(self, command: Command) -> tuple[int, int]:
        while True:
            try:
                return await super().send(command)
            except LogUnavailable:
                await asyncio.sleep(0.01)


class Misfortune:
    """Accidents at the commits of a scene, as chance has it."""

    def __init__(self, scene: Scene, chance: random.Random, ids: list[str]) -> None:
        self.scene, self.chance, self.ids = scene, chance, ids
        self.left = ACCIDENTS
        self.said: list[str] = []
        self.resumed: Counter[str] = Counter()  # by run
        self._under_way: set[asyncio.Task[None]] = set()
        scene.broker.before_commit = self._before
        scene.broker.after_commit = self._after

    async def _before(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        self.scene.broker.marker_delay = self.chance.choice([0.0, 0.0, 0.005])
        if self._strikes():
            accidents = self.kill, self.expel, self.join, self.retire, self.freeze, self.stop, self.cancel, self.resume
            await self._happen(self.chance.choice(accidents))
            self._lose_the_answer()

    async def _after(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        if self._strikes():
            await self._happen(self.chance.choice([self.kill, self.expel, self.noise, self.freeze]))
            self._lose_the_answer()

    def _strikes(self) -> bool:
        if self.left and self.chance.random() < RATE:
            self.left -= 1
            return True
        return False

    async def _happen(self, accident: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.said.append(accident.__name__)
        self.scene.interruptions += 1
        task = asyncio.create_task(accident())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        for _ in range(self.chance.randrange(6)):  # it comes a little earlier or later
            await asyncio.sleep(0)

    def _lose_the_answer(self) -> None:
        if self.chance.random() < 0.3:
            self.said.append("no answer")
            raise LogUnavailable("the answer was lost")

    async def over(self) -> None:
        """No more of it."""
        self.left = 0
        while self._under_way:
            await asyncio.gather(*self._under_way)
        for process in self.scene.processes:
            process.seat.frozen = False

    # ---- accidents

    def _one(self) -> Process:
        return self.chance.choice(self.scene.processes)

    async def kill(self) -> None:
        process = self._one()
        self.scene.start(f"worker-{len(self.said)}-{uuid4().hex[:4]}", silence_seconds=0.2)
        self.scene.processes.remove(process)
        await process.kill()

    async def expel(self) -> None:
        self._one().seat.leave()

    async def join(self) -> None:
        if len(self.scene.processes) < 4:
            self.scene.start(f"worker-{len(self.said)}-{uuid4().hex[:4]}", silence_seconds=0.2)

    async def retire(self) -> None:
        if len(self.scene.processes) > 1:
            process = self._one()
            self.scene.processes.remove(process)
            await process.retire()

    async def freeze(self) -> None:
        """A keeper that stands still, longer than the group waits for it: its worker knows nothing."""
        process = self._one()
        process.seat.frozen = True
        process.seat.leave()
        await asyncio.sleep(self.chance.random() / 5)
        process.seat.frozen = False

    async def stop(self) -> None:
        self.scene.broker.stop()
        await asyncio.sleep(self.chance.random() / 20)
        self.scene.broker.start()

    async def cancel(self) -> None:
        await self.scene.cancel(self.chance.choice(self.ids))

    async def resume(self) -> None:
        """Of runs that wait for a person, one goes on; a tool whose outcome is unknown is made again, as the person wants."""
        waiting = [id_ for id_ in self.ids if (run := self.scene.notes.runs.get(id_)) and run.status is Status.SUSPENDED]
        for id_ in waiting[:1]:
            self.resumed[id_] += 1
            command = RunResumeRequested(run_id=id_, command_id=str(uuid4()), requested_by="test", token_budget=10_000)
            await self.scene.commands.send(command)

    async def noise(self) -> None:
        """What else may stand in a topic: a request said twice, a command for no run, bytes."""
        commands, id_ = self.scene.commands, self.chance.choice(self.ids)
        if shard_module.OVERLAP > 100:  # else nobody remembers those that ended
            await commands.send(RunRequested(run_id=id_, agent="default", input="something else"))
        await commands.send(RunCancelRequested(run_id=str(uuid4()), command_id="c", requested_by="nobody"))
        self.scene.broker.put(self.chance.randrange(PARTITIONS), id_.encode(), b"?!")


@pytest.mark.parametrize("seed", range(22))
async def test_random_runs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    if seed % 2:  # snapshots early and often, and takeovers that begin with them
        for name, value in {"BEHIND": 15, "FACTOR": 0, "LOOK_EVERY": 1}.items():
            monkeypatch.setattr(carrier, name, value)
        monkeypatch.setattr(shard_module, "OVERLAP", 3)
    scripts = {f"run {n}.": random_script(chance) for n in range(RUNS)}
    async with AsyncExitStack() as undo:
        others = {"": Script().then_text("?")}
        scene = await undo.enter_async_context(stage({**scripts, **others}, partitions=PARTITIONS, **RESUMED))
        scene.commands = Patient(scene.broker)
        follower = Follower(scene)
        undo.push_async_callback(follower.close)
        scene.serve(*random_tools(chance, scene.ledger))
        ids = [str(uuid4()) for _ in range(RUNS)]
        misfortune = Misfortune(scene, chance, ids)
        for _ in range(2):
            scene.start(silence_seconds=0.2, max_tool_calls=5, max_model_calls=4)
        for n, id_ in enumerate(ids):
            await scene.submit(f"run {n}.", run_id=id_, **random_limits(chance))
        try:
            await follower.until_settled(ids)
            await misfortune.over()
            await at_rest(scene)
        finally:
            print(f"seed {seed}: {', '.join(misfortune.said)}")
        check_memory(scene)
        check_ledger(scene, misfortune.resumed)


def random_limits(chance: random.Random) -> dict[str, Any]:
    return {"token_budget": chance.choice([None, None, None, 40]), "max_steps": chance.choice([None, None, None, 6])}


async def at_rest(scene: Scene) -> None:
    """Until every partition has an owner that has nothing in hand."""

    def done() -> bool:
        partitions = [partition for process in scene.processes for partition in process.worker.partitions.values()]
        owned = {partition.number for partition in partitions if partition.owned}
        return len(owned) == len(partitions) == PARTITIONS and not any(
            flow.hand or flow.unread for partition in partitions for flow in partition.flows.values()
        )

    await scene.notes.until(done, PATIENCE)
    await scene.quiet()


def check_memory(scene: Scene) -> None:
    """What the workers hold is what the log says, wherever one begins to read it."""
    records = [record for record in scene.records() if isinstance(record, Record)]
    for process in scene.processes:
        for number, partition in process.worker.partitions.items():
            mine = [record for record in records if record.partition == number]
            low = scene.broker.partitions[number].position.low
            whole, tail = fold(number, mine), fold(number, [record for record in mine if record.offset >= low])
            held = {id_: flow.run for id_, flow in partition.flows.items()}
            assert held == whole == tail, f"partition {number} from {low}"
            assert all(flow.ahead is flow.run for flow in partition.flows.values())
        for slots, size in (
            (process.resources.model_slots, process.resources.max_model_calls),
            (process.resources.tool_slots, process.resources.max_tool_calls),
        ):
            assert slots._free == size, "a slot was lost or given back twice"


def fold(number: int, records: Sequence[Record]) -> dict[str, Run]:
    """The open runs."""
    shard = Shard(number)
    for record in records:
        shard.apply(record)
    return shard.runs


def check_ledger(scene: Scene, resumed: Counter[str]) -> None:
    """A tool that cannot be repeated was not, unless somebody resumed its run (O7 allows one more for each accident)."""
    events = [record.event for record in scene.records() if isinstance(record, Record)]
    once = {event.idempotency_key: event for event in events if isinstance(event, ToolStepStarted) and not event.repeatable}
    counts = Counter(execution.key for execution in scene.ledger)
    for key, event in once.items():
        assert counts[key] <= 1 + resumed[event.run_id], key
