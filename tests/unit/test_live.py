"""The text of a model call while it arrives: told by the worker, marked when it is void, and never in a call's way."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from runfold.core.events import ModelStepCompleted, ModelStepFailed, ModelStepStarted, RunFinished, RunRequested, Status
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLive, MemoryLiveReader, MemoryLog
from runfold.ports import Live, LiveEnd, LiveText, Model
from runfold.testing import Script, ScriptedStream, sse
from tests.changes import Changes
from tests.engine import Engine, Ledger, NoRetry

PATIENCE = 20.0
BEGINNING = (sse.message_start(), sse.text_start(), sse.text_delta("Let me "), sse.text_delta("think"))


class Screen:
    """A `Live` in front of the memory one, that wakes whoever waits for a piece."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._live = MemoryLive(broker)
        self.pieces: list[LiveText] = []
        self._changes = Changes()

    def show(self, piece: LiveText) -> None:
        self._live.show(piece)
        self.pieces.append(piece)
        self._changes.tell()

    async def until(self, true: Callable[[], bool]) -> None:
        await self._changes.until(true, PATIENCE)

    def text(self, attempt: int, seq: int = 1) -> str:
        return "".join(piece.text for piece in self.pieces if (piece.seq, piece.attempt) == (seq, attempt))

    @property
    def ends(self) -> list[tuple[int, int, LiveEnd | None]]:
        return [(piece.seq, piece.attempt, piece.end) for piece in self.pieces]

    def opening(self, attempt: int) -> tuple[int, str, LiveEnd | None]:
        first = next(piece for piece in self.pieces if piece.attempt == attempt)
        return first.index, first.text, first.end


class Stage:
    def __init__(self) -> None:
        self.broker, self.ledger, self.engines = MemoryBroker(1), Ledger(), list[Engine]()
        self.broker.group.join("group")
        self.screen, self.run_id = Screen(self.broker), str(uuid4())

    async def owner(self, model: Model, **options: Any) -> Engine:
        options = {"live": self.screen, "retries": NoRetry([0.0]), **options}
        engine = Engine(MemoryLog(self.broker), model, self.ledger, name=f"worker-{len(self.engines)}", **options)
        self.engines.append(engine)
        engine.grant([0], self.broker.group.proof("group"))
        await engine.notes.until(lambda: len(engine.notes.epochs) == 1)
        return engine

    async def request(self) -> None:
        await MemoryCommands(self.broker).send(RunRequested(run_id=self.run_id, agent="default", input="go"))

    async def ended(self, engine: Engine) -> None:
        await engine.notes.until(lambda: self.run_id in engine.notes.ended)
        assert engine.notes.ended[self.run_id].status is Status.SUCCEEDED

    def events(self, engine: Engine, *kinds: type) -> list[Any]:
        return [record.event for record in engine.notes.applied_records if isinstance(record.event, kinds)]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    for engine in stage.engines:
        await engine.close()
    assert [failure for engine in stage.engines for failure in engine.failures] == []


async def test_the_first_words_are_shown_while_the_call_goes_on(stage: Stage) -> None:
    engine = await stage.owner(ScriptedStream(Script().then_sse(*BEGINNING, "hang")))
    await stage.request()
    await stage.screen.until(lambda: stage.screen.text(1) == "Let me think")
    assert stage.events(engine, ModelStepStarted), "nothing is shown of a step that the log does not know"
    assert stage.events(engine, ModelStepCompleted, ModelStepFailed) == []


async def test_what_was_shown_is_what_the_log_has_and_ends_with_a_mark(stage: Stage) -> None:
    words = [f"word {number} " for number in range(1000)]
    answer = [*BEGINNING[:2], *map(sse.text_delta, words), sse.block_stop(), sse.message_delta("end_turn"), sse.message_stop()]
    engine = await stage.owner(ScriptedStream(Script().then_sse(*answer)))
    await stage.request()
    await stage.ended(engine)
    (completed,) = stage.events(engine, ModelStepCompleted)
    assert [{"type": "text", "text": stage.screen.text(1)}] == json.loads(completed.content_json)
    assert [piece.index for piece in stage.screen.pieces] == list(range(len(stage.screen.pieces)))
    assert [piece.end for piece in stage.screen.pieces][-1] is LiveEnd.COMPLETE
    assert len(stage.screen.pieces) < 100, "deltas are joined"
    assert MemoryLiveReader(stage.broker, stage.run_id).read(0) == stage.screen.pieces


async def test_a_failed_attempt_is_marked_and_the_next_one_begins_with_a_piece_of_its_own(stage: Stage) -> None:
    engine = await stage.owner(ScriptedStream(Script().then_sse(*BEGINNING, "reset").then_text("done")))
    await stage.request()
    await stage.ended(engine)
    assert stage.screen.text(1) == "Let me think"
    assert stage.screen.text(2) == "done"
    assert [end for end in stage.screen.ends if end[2]] == [(1, 1, LiveEnd.FAILED), (1, 2, LiveEnd.COMPLETE)]
    assert stage.screen.opening(attempt=2) == (0, "", None)


async def test_the_owner_after_one_that_died_in_mid_sentence_says_that_the_text_is_void(stage: Stage) -> None:
    model = ScriptedStream(Script().then_sse(*BEGINNING, "hang").then_text("done"))
    first = await stage.owner(model)
    await stage.request()
    await stage.screen.until(lambda: stage.screen.text(1) == "Let me think")
    first.resources.live = None  # killed, it says no more
    second = await stage.owner(model)
    await stage.ended(second)
    assert stage.screen.opening(attempt=2) == (0, "", None)
    assert stage.screen.text(2) == "done"
    assert stage.screen.ends[-1] == (1, 2, LiveEnd.COMPLETE)


async def test_a_call_that_is_aborted_is_marked_as_cut(stage: Stage) -> None:
    engine = await stage.owner(ScriptedStream(Script().then_sse(*BEGINNING, "hang")))
    await stage.request()
    await stage.screen.until(lambda: stage.screen.text(1) == "Let me think")
    engine.grant([], b"")  # lost
    await stage.screen.until(lambda: stage.screen.pieces[-1].end is LiveEnd.CUT)


async def test_nothing_is_shown_of_an_answer_without_text(stage: Stage) -> None:
    script = Script().then_tool_use("toolu_1", "act", {"n": 1}).then_text("done")
    engine = await stage.owner(ScriptedStream(script))
    await stage.request()
    await stage.ended(engine)
    assert {piece.seq for piece in stage.screen.pieces} == {3}


class Broken:
    def show(self, piece: LiveText) -> None:
        raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("live", [Broken(), None])
async def test_a_run_does_not_need_it(stage: Stage, live: Live | None) -> None:
    engine = await stage.owner(ScriptedStream(Script().then_sse(*BEGINNING, "reset").then_text("done")), live=live)
    await stage.request()
    await stage.ended(engine)
    assert len(stage.events(engine, RunFinished)) == 1
    assert stage.screen.pieces == []
