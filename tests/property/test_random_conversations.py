"""Ten thousand conversations with crashes at random points: whatever was said, every request is one that the API takes, and tells
the past as it was told before.

No HTTP: the request is built by what builds it for the API, and judged by the very object that the fake API judges with. A worker
that dies is replaced by one that reads the log from its bytes, from the beginning or from a snapshot. Seeds are printed; a story
is played again by its seed and number.
"""

import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from runfold.core import snapshot
from runfold.core.conversation import read_turn
from runfold.core.decisions import Begin, CallModel, Decision
from runfold.core.events import ModelStepCompleted, ModelStepStarted, Reason, Record, RunSnapshotted, ToolStatus
from runfold.core.run import Call, Run, evolve, fold
from runfold.log.codec import Codec
from runfold.model.request import arguments
from runfold.testing.fake_api.checker import Checker
from runfold.testing.given import History, given
from runfold.worker.step import model_request

from .pure_worker import PureWorker, pauses
from .random_conversations import RESULTS, random_answers, random_definition

SEEDS, STORIES = 10, 1000
CODEC = Codec()


@dataclass
class Teller(PureWorker):
    """Checks each request, and begins again from the log's bytes after each death."""

    definition: dict[str, Any] = field(default_factory=dict)
    checker: Checker = field(default_factory=Checker)
    requests: int = 0
    deaths: int = 0

    def carry_out(self, decision: Decision) -> bool:
        if isinstance(decision, Begin):
            return self.write(self.history.started(**self.definition))
        return super().carry_out(decision)

    def check_request(self, decision: CallModel) -> None:
        start = self.history.started_model(decision.max_tokens).records[-1].event
        assert isinstance(start, ModelStepStarted)
        body = arguments(model_request(self.run, start, None))
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        assert self.checker.complaint(body, pauses(self.history)) is None
        assert self.checker.drift(body, "", turn) is None
        self.requests += 1

    def write(self, history: History) -> bool:
        said = history.records[-1].event
        if isinstance(said, ModelStepCompleted) and (rendered := read_turn(said.content_json).rendered) is not None:
            turn = sum(message.role == "assistant" for message in self.run.messages)
            self.checker.answered("", turn, json.loads(rendered.content_json))
        if super().write(history):
            return True
        self.deaths += 1
        self.history = born_again(self.history, from_snapshot=self.random.random() < 0.3)
        return False

    def end_one(self) -> None:
        attempt = self.random.choice(sorted(self.hand))
        call = next((call for call in self.run.calls if (call.seq, call.attempt) == attempt), None)
        self.hand.remove(attempt)
        self.write(self.answer() if call is None else self.result_of(call))

    def result_of(self, call: Call) -> History:
        status = self.random.choice([ToolStatus.DONE, ToolStatus.DONE, ToolStatus.ERROR, ToolStatus.DENIED])
        return self.history.finished_tool(call.id, status=status, content_json=self.random.choice(RESULTS))


def born_again(history: History, *, from_snapshot: bool) -> History:
    """What the next worker has: the same run, from bytes."""
    if from_snapshot:
        state = snapshot.to_text(history.run)
        history = history.when(
            RunSnapshotted(
                run_id=history.run.id,
                epoch=history.epoch,
                last_offset=history.run.last_offset,
                state_version=snapshot.VERSION,
                state_json=state,
            )
        )
    records = [replace(record, event=CODEC.decode(CODEC.encode(record.event))) for record in history.records]
    run = read_from(records[-1:] if from_snapshot else records)
    assert run is not None
    assert replace(run, fold_from=0) == replace(history.run, fold_from=0)
    return replace(history, records=tuple(records), run=run)


def read_from(records: list[Record]) -> Run | None:
    return evolve(None, records[0]) if len(records) == 1 else fold(records)


def story(chance: Random) -> Teller:
    limits: dict[str, Any] = {"token_budget": chance.choice([None, None, 3000]), "max_steps": chance.choice([None, None, 8])}
    dies_at = {chance.randrange(2, 25) for _ in range(chance.choice([0, 1, 1, 2]))}
    return Teller(given(**limits), random_answers(chance), chance, dies_at, definition=random_definition(chance))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_request_is_one_that_the_api_takes(seed: int) -> None:
    print(f"seed {seed}")
    requests = deaths = 0
    for number in range(STORIES):
        teller = story(Random(f"{seed}/{number}"))
        try:
            teller.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, story {number}") from error
        assert teller.run.reason is not Reason.PREFIX_DRIFT, f"seed {seed}, story {number}"
        requests, deaths = requests + teller.requests, deaths + teller.deaths
    assert requests > 2 * STORIES
    assert deaths > STORIES / 4
