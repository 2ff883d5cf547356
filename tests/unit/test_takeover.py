"""What a takeover took, and how long nobody had carried the partition before (`runfold.worker.takeover`)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from runfold.core.errors import LogUnavailable
from runfold.core.events import LeaseAcquired, OwnerEvent, Reason, Record, RunCancelRequested, RunFinished, RunRequested
from runfold.core.run import Run
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog
from runfold.model.scripted import ScriptedModel
from runfold.ports import Failover, Grant, ModelAnswer, ModelRequest
from runfold.testing import given
from runfold.testing.given import tool_use
from runfold.worker.takeover import Takeover
from tests.engine import Engine, Ledger, text, turns

MARKER = Record(LeaseAcquired(partition=0, worker="w", build="b"), 0, 99, 0)


def marker(ms_after: int, run: Run) -> Record:
    return Record(MARKER.event, 0, 99, run.last_at + ms_after)


def test_after_a_death_it_is_counted_from_the_death() -> None:
    assert Takeover(10.0).failover(MARKER, [], 10.25) == Failover("death", 0.25)


@pytest.mark.parametrize("under_way", ["model", "tool"])
def test_a_step_that_was_left_under_way_means_that_its_owner_failed(under_way: str) -> None:
    history = given().started()
    history = history.started_model() if under_way == "model" else history.answers(tool_use("a")).started_tool("a")
    idle = given().run
    assert Takeover(None).failover(marker(6_500, history.run), [idle, history.run], 0.0) == Failover("last_event", 6.5)


def test_who_left_no_step_under_way_has_not_failed() -> None:
    """A planned hand-over, however long it took, and runs that wait for something."""
    between = given().started().answers(tool_use("a"))
    waiting = between.started_tool("a").suspended(Reason.OUTCOME_UNKNOWN)
    for run in (given().run, given().started().run, between.run, waiting.run):
        assert Takeover(None).failover(marker(9_999, run), [run], 0.0) is None
    assert Takeover(None).failover(MARKER, [], 0.0) is None


def test_a_broker_whose_clock_went_back_counts_nothing() -> None:
    run = given().started().started_model().run
    assert Takeover(None).failover(marker(-50, run), [run], 0.0) == Failover("last_event", 0.0)


# ---- on a worker


class Stage:
    def __init__(self) -> None:
        self.broker, self.ledger = MemoryBroker(1), Ledger()
        self.broker.group.join("group")
        self.broker.before_commit = self._before
        self.refused: type | None = None  # the next commit that brings one fails
        self.engines: list[Engine] = []

    async def _before(self, partition: int, events: Sequence[OwnerEvent]) -> None:
        if self.refused and any(isinstance(event, self.refused) for event in events):
            self.refused = None
            raise LogUnavailable("the test says so")

    def engine(self, model: Any = None) -> Engine:
        engine = Engine(MemoryLog(self.broker), model or ScriptedModel(turns(text("done"))), self.ledger)
        self.engines.append(engine)
        return engine

    async def own(self, engine: Engine, **words: Any) -> None:
        now = asyncio.get_running_loop().time()
        grant = Grant(frozenset([0]), proof=self.broker.group.proof("group"), at=now, **words)
        engine.worker.granted(grant)
        await engine.notes.until(lambda: len(engine.notes.failovers) == 1)

    async def request(self) -> str:
        id_ = str(uuid4())
        await MemoryCommands(self.broker).send(RunRequested(run_id=id_, agent="default", input="go"))
        return id_


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    for engine in made.engines:
        await engine.close()
        assert engine.failures == []


class Slow:
    """A model that answers only when it is cancelled: as a library does that swallows the cancellation."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        self.entered.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return text("too late")


async def test_a_worker_that_lost_its_predecessor_measures_the_gap_once(stage: Stage) -> None:
    slow = Slow()
    first = stage.engine(slow)
    await stage.own(first)
    assert first.notes.failovers == [None], "nobody was there before"
    await stage.request()
    await slow.entered.wait()
    await first.close()
    second = stage.engine()
    await stage.own(second, orphaned=frozenset([0]), died_at=asyncio.get_running_loop().time() - 0.5)
    (failover,) = second.notes.failovers
    assert failover is not None
    assert failover.since == "death"
    assert 0.5 <= failover.seconds < 10
    stage.refused = RunFinished
    await second.notes.until(lambda: len(second.notes.epochs) == 2)
    assert len(second.notes.resets) == 1
    assert len(second.notes.failovers) == 1, "it mended its own lane, and took nothing over"


async def test_a_worker_on_another_machine_measures_from_the_last_event(stage: Stage) -> None:
    slow = Slow()
    first = stage.engine(slow)
    await stage.own(first)
    await stage.request()
    await slow.entered.wait()
    await first.close()
    second = stage.engine()
    await stage.own(second)
    (failover,) = second.notes.failovers
    assert failover is not None
    assert failover.since == "last_event"


async def test_a_result_that_comes_after_the_end_of_its_run_is_counted_and_dropped(stage: Stage) -> None:
    slow = Slow()
    engine = stage.engine(slow)
    await stage.own(engine)
    id_ = await stage.request()
    await slow.entered.wait()
    await MemoryCommands(stage.broker).send(RunCancelRequested(run_id=id_, command_id="c", requested_by="test"))
    await engine.notes.until(lambda: len(engine.notes.late_results) == 1)
    assert [event.run_id for event in engine.notes.late_results if not isinstance(event, LeaseAcquired)] == [id_]
    await engine.notes.until(lambda: id_ in engine.notes.ended)
    assert engine.notes.ended[id_].usage.total == 0
