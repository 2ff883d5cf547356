"""A step that kills its worker takes down what runs beside it. Only the one is suspended for it (R07.3)."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from runfold.core.decide import MAX_STARTS
from runfold.core.events import ModelStepStarted, Reason, RunRequested, RunSuspended, Status
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryTail
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest
from runfold.worker import partition
from tests.changes import Changes
from tests.engine import Engine, Ledger, ScriptedTools, text, turns

PATIENCE = 20.0


class Ward:
    """One partition; a run whose model call kills the worker, and others whose calls are under way for as long as that one is."""

    def __init__(self) -> None:
        self.broker, self.ledger = MemoryBroker(1), Ledger()
        self.broker.group.join("group")
        self.killer, *self.others = (str(uuid4()) for _ in range(4))
        self.workers: list[Engine] = []
        self.under_way: set[str] = set()
        self._changes = Changes()

    async def request_all(self) -> None:
        for run_id in (self.others[0], self.killer, *self.others[1:]):
            await MemoryCommands(self.broker).send(RunRequested(run_id=run_id, agent="default", input="go"))

    async def worker(self) -> Engine:
        """The next one, once the one before is dead."""
        for worker in self.workers:
            await worker.close()
        self.under_way.clear()
        tools = ScriptedTools(self.ledger)
        worker = Engine(MemoryLog(self.broker), ScriptedModel(self._answer), self.ledger, tools=tools, silence_seconds=60.0)
        self.workers.append(worker)
        worker.grant([0], self.broker.group.proof("group"))
        return worker

    async def _answer(self, request: ModelRequest) -> ModelAnswer:
        self.under_way.add(request.run_id)
        self._changes.tell()
        if self.killer in self.under_way or len(self.workers) < MAX_STARTS:
            await asyncio.Event().wait()  # until death
        return turns(text("done"))(request)

    async def until_under_way(self, *run_ids: str) -> None:
        await self._changes.until(lambda: self.under_way.issuperset(run_ids), PATIENCE)

    async def starts(self, run_id: str) -> int:
        records = await MemoryTail(self.broker).records(run_id, 0)
        return sum(isinstance(record.event, ModelStepStarted) for record in records)


@pytest.fixture
async def ward() -> AsyncIterator[Ward]:
    ward = Ward()
    yield ward
    for worker in ward.workers:
        await worker.close()
        assert worker.failures == []


async def test_what_runs_beside_a_killer_is_not_suspended_with_it(ward: Ward) -> None:
    await ward.request_all()
    for _ in range(MAX_STARTS - 1):
        await ward.worker()
        await ward.until_under_way(ward.killer, *ward.others)
    last = await ward.worker()
    await ward.until_under_way(ward.killer)
    before = set(last.notes.ended)
    survivor = await ward.worker()
    await survivor.notes.until(lambda: before | survivor.notes.ended.keys() == set(ward.others), PATIENCE)
    assert {survivor.notes.ended[run_id].status for run_id in survivor.notes.ended} <= {Status.SUCCEEDED}
    events = [record.event for record in await MemoryTail(ward.broker).records(ward.killer, 0)]
    (suspension,) = [event for event in events if isinstance(event, RunSuspended)]
    assert suspension.reason is Reason.CRASH_LOOP
    assert await ward.starts(ward.killer) == MAX_STARTS
    assert max([await ward.starts(run_id) for run_id in ward.others]) <= MAX_STARTS


async def test_a_step_that_has_run_for_a_while_holds_up_no_other_suspect(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise three deaths of a busy machine would leave its runs to be made one after the other."""
    monkeypatch.setattr(partition, "PROBATION_SECONDS", 0.05)
    await ward.request_all()
    for _ in range(MAX_STARTS):
        await ward.worker()
        await ward.until_under_way(ward.killer, *ward.others)
    assert [await ward.starts(run_id) for run_id in (ward.killer, *ward.others)] == [MAX_STARTS] * 4
