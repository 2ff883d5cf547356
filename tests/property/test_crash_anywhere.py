"""Kill the worker around any append; a fresh worker goes on from the log alone, on the memory log and on a real Kafka.

For each n: the process is gone right before, or right after, its n-th append. The run must end in the same state, no committed
model answer may be paid for twice, no tool that was not in doubt may run twice.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from runfold.core.errors import LogUnavailable
from runfold.core.events import ModelStepCompleted, OwnerEvent, Record, RunRequested
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.model.scripted import ScriptedModel
from runfold.ports import Appender, Log, Position, Reading
from tests.contract.log_suite import World, run_on
from tests.contract.log_worlds import kafka_world, memory_world
from tests.engine import Engine, Ledger, answer, text, tool_use, turns

SCRIPT = (
    tool_use(("a", "first", {"n": 1}), ("b", "second", {"n": 2})),
    answer([{"type": "text", "text": "cut"}], "max_tokens"),
    tool_use(("c", "third", {})),
    text("done"),
)


def script() -> ScriptedModel:
    """Step 4 is cut off by max_tokens and asked for again as step 5."""
    kept = turns(SCRIPT[0], SCRIPT[2], SCRIPT[3])
    return ScriptedModel(lambda request: SCRIPT[1] if request.seq == 4 else kept(request))


class Doomed:
    """A log whose user's process is gone around its n-th append: nothing it does afterwards reaches anything."""

    def __init__(self, inner: Log, at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, at, after
        self.died = asyncio.Event()

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    async def fence(self, partition: int) -> Appender:
        return DoomedAppender(await self._inner.fence(partition), self)

    async def position(self, partition: int) -> Position:
        return await self._inner.position(partition)

    async def read(self, partition: int, offset: int) -> Reading:
        return await self._inner.read(partition, offset)

    async def dead_letter(self, unreadable: object) -> None:
        raise AssertionError("nothing here is unreadable")

    async def close(self) -> None:
        await self._inner.close()

    async def append(self, appender: Appender, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        self._left -= 1
        if self._left == 0 and self._after:
            await appender.append(events, position, proof)
        if self._left <= 0:
            self.died.set()
            await asyncio.Event().wait()  # for ever
        await appender.append(events, position, proof)


class DoomedAppender:
    def __init__(self, inner: Appender, log: Doomed) -> None:
        self._inner, self._log = inner, log

    async def append(self, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        await self._log.append(self._inner, events, position, proof)

    def drop(self) -> None:
        self._inner.drop()


@pytest.fixture(params=["memory", "kafka"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = memory_world() if request.param == "memory" else kafka_world(request.getfixturevalue("bootstrap"))
    async with opened as world:
        yield world


def _has_ended(engine: Engine, run_id: str) -> bool:
    return run_id in engine.notes.ended


def _was_reset(engine: Engine) -> bool:
    return bool(engine.notes.resets)


async def whole(world: World, run_id: str) -> tuple[list[Record], Run | None]:
    """The committed records of a run, and what they fold to once it has ended."""
    records = await (await world.tail()).records(run_id, 0)
    shard, final = Shard(0), None
    for record in records:
        shard.epoch = -1  # the run's records alone: their leases are not among them
        outcome = shard.apply(record)
        final = outcome if isinstance(outcome, Run) and outcome.status.final else final
    return records, final


def outline(run: Run) -> Run:
    """What must not depend on who died when."""
    request = replace(run.request, run_id="")
    return replace(
        run,
        request=request,
        started=None,
        step=replace(run.step, attempt=0),
        unsettled=0,
        unsettled_cost=None,
        first_offset=0,
        last_offset=0,
        fold_from=0,
        requested_at=0,
        started_at=0,
        finished_at=0,
        last_at=0,
    )


async def play(world: World, proof: bytes, run_id: str, crash: tuple[int, bool] | None) -> tuple[list[Record], Run, Ledger, int]:
    """One run, its worker dying as told; its log, its state, the ledger and how many workers it took."""
    ledger = Ledger()
    await (await world.commands()).send(RunRequested(run_id=run_id, agent="default", input="go"))
    workers = 0
    while True:
        workers += 1
        log = await world.log()
        doomed = Doomed(log, *(crash if crash and workers == 1 else (10_000, False)))
        engine = Engine(doomed, script(), ledger, name=f"worker-{workers}")
        engine.grant([0], proof)
        ended = asyncio.create_task(engine.notes.until(partial(_has_ended, engine, run_id)))
        died = asyncio.create_task(doomed.died.wait())
        await asyncio.wait([ended, died], return_when=asyncio.FIRST_COMPLETED)
        survived = ended.done() and not died.done() and ended.result() is None
        for task in (ended, died):
            task.cancel()
        await engine.close()
        await log.close()
        assert engine.failures == []
        records, run = await whole(world, run_id)
        assert run or not survived
        if run:
            return records, run, ledger, workers


async def test_a_worker_killed_around_any_append_changes_nothing_but_attempts(world: World) -> None:
    proof = await (await world.seat()).owning(4)
    _, expected, ledger, _ = await play(world, proof, run_on(0), None)
    assert len(ledger.model_calls) == 4
    assert expected.output == "done"
    most = 12
    for after in (False, True):
        for at in range(1, most):
            run_id = run_on(0)
            got_records, run, ledger, workers = await play(world, proof, run_id, (at, after))
            assert outline(run) == outline(expected), f"died at append {at}, after={after}"
            completed = [record.event.seq for record in got_records if isinstance(record.event, ModelStepCompleted)]
            assert len(completed) == len(set(completed)) == 4, "no answer is in the log twice"
            assert len(ledger.model_calls) <= 4 + (workers > 1), "at most the call in flight is paid twice"
            assert set(ledger.executions) == {f"{run_id}/1/a", f"{run_id}/1/b", f"{run_id}/5/c"}
            assert max(ledger.executions.values()) <= workers


async def test_an_append_of_unknown_outcome_is_settled_by_reading_the_log(world: World) -> None:
    """The reset path: an append that was lost, and one that was not, while the worker lives on."""
    proof = await (await world.seat()).owning(4)
    for committed in (False, True):
        for at in range(2, 9):
            run_id, ledger = run_on(0), Ledger()
            await (await world.commands()).send(RunRequested(run_id=run_id, agent="default", input="go"))
            log = await world.log()
            engine = Engine(Uncertain(log, at, committed), script(), ledger)
            engine.grant([0], proof)
            await engine.notes.until(partial(_has_ended, engine, run_id))
            await engine.notes.until(partial(_was_reset, engine))  # the last append may be read back before it is refused
            await engine.close()
            await log.close()
            assert engine.failures == []
            _, run = await whole(world, run_id)
            assert run is not None
            assert run.output == "done"
            assert len(ledger.model_calls) == 4, "a result in hand survives the reset"
            assert set(ledger.executions.values()) == {1}
            assert len(engine.notes.resets) == 1


class Uncertain(Doomed):
    """A log whose n-th append raises, committed or not."""

    async def append(self, appender: Appender, events: Sequence[OwnerEvent], position: Position, proof: bytes) -> None:
        self._left -= 1
        if self._left == 0:
            if self._after:
                await appender.append(events, position, proof)
            raise LogUnavailable("the test says so")
        await appender.append(events, position, proof)
