"""A worker without I/O, clock or log: what `decide` says becomes a record at once, and what is in hand ends in any order.

Everything it does follows from the log, its script and its seed; so it can die at any record, and another goes on. It checks on
the way what must hold at every decision.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, assert_never

from runfold.core.conversation import read_turn
from runfold.core.decide import Attempt, decide
from runfold.core.decisions import Begin, CallModel, Decision, Finish, Reject, Resume, RunTools, Suspend, WaitUntil
from runfold.core.events import ModelStepCompleted, Reason, RunSuspended, ToolStatus, Usage
from runfold.core.run import Call, Run
from runfold.testing.fake_api.rules import complaints
from runfold.testing.given import History

USAGE = Usage(input_tokens=10, output_tokens=5)
ENOUGH = 2_000  # rounds; a run that takes more makes no progress


@dataclass(frozen=True)
class Answer:
    """What the model says at one step, after ``failures`` attempts that fail."""

    content_json: str
    stop_reason: str
    usage: Usage = USAGE
    cost: Decimal | None = Decimal("0.001")
    failures: int = 0


FINAL_ANSWER = Answer('[{"type":"text","text":"done"}]', "end_turn")


@dataclass
class PureWorker:
    """``script``: the answers in order, then a final one. ``dies_at``: records after which the worker is replaced."""

    history: History
    script: Sequence[Answer]
    random: Random
    dies_at: Collection[int] = ()
    unrepeatable: Collection[str] = ()  # ids of tool calls
    hand: set[Attempt] = field(default_factory=set)
    since: int = 0

    @property
    def run(self) -> Run:
        return self.history.run

    def finish(self) -> History:
        for _ in range(ENOUGH):
            if self.run.status.final:
                return self.history
            self.act()
        raise AssertionError(f"no end after {ENOUGH} rounds: {self.run.status}, {self.history.decisions(self.hand)}")

    def act(self) -> None:
        """One round: write what is decided; where that is nothing, end a step in hand; where there is none, wait."""
        decisions = decide(self.run, self.history.now, self.hand, self.since)
        waits = [decision.at for decision in decisions if isinstance(decision, WaitUntil)]
        assert all(at > self.history.now for at in waits), "a worker that looks again at once would spin"
        written = len(self.history.records)
        for decision in decisions:
            if not self.carry_out(decision):
                return  # the worker died on the way
        if len(self.history.records) == written:
            self.end_one() if self.hand else self.wait(decisions[-1])

    def carry_out(self, decision: Decision) -> bool:
        match decision:
            case Begin():
                return self.write(self.history.started())
            case CallModel():
                self.check_request(decision)
                return self.start(self.history.started_model(decision.max_tokens), (decision.seq, decision.attempt))
            case RunTools(calls=calls):
                some = self.random.sample(calls, self.random.randint(1, len(calls)))  # a worker has limits of its own
                return all(self.start_tool(call) for call in some)
            case Suspend():
                return self.write(self.history.when(self.suspended(decision)))
            case Finish():
                return self.write(self.history.finished(decision.status, decision.reason, decision.command_id))
            case Resume() | Reject():
                raise AssertionError("nobody asked this run to go on")
            case WaitUntil():
                return True
            case _:
                assert_never(decision)

    def check_request(self, decision: CallModel) -> None:
        """The API would take it, and the budget allows it."""
        budget = self.run.request.limits.token_budget
        left = 10**9 if budget is None else budget - self.run.spent
        assert 1 <= decision.max_tokens <= left
        body = {"model": "m", "max_tokens": decision.max_tokens, "messages": self.history.messages}
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
        assert list(complaints(body, paused=pauses(self.history), unique_ids=False)) == []

    def suspended(self, decision: Suspend) -> RunSuspended:
        return RunSuspended(
            run_id=self.run.id,
            epoch=self.history.epoch,
            reason=decision.reason,
            detail=decision.detail,
            tool_use_id=decision.tool_use_id,
        )

    def start_tool(self, call: Call) -> bool:
        history = self.history.started_tool(call.id, repeatable=call.id not in self.unrepeatable)
        return self.start(history, (call.seq, call.attempt + 1))

    def start(self, history: History, attempt: Attempt) -> bool:
        assert attempt not in self.hand
        self.hand.add(attempt)
        return self.write(history)

    def write(self, history: History) -> bool:
        """Take a record over. False: the worker died of it, and another has the run now."""
        assert history.run is not self.run, f"{history.records[-1].event} makes no difference: it would be decided again for ever"
        self.history = history
        if len(history.records) not in self.dies_at:
            return True
        self.history = history.taken_over()
        self.hand.clear()
        self.since = self.history.now
        return False

    def end_one(self) -> None:
        seq, attempt = self.random.choice(sorted(self.hand))
        self.hand.remove((seq, attempt))
        for call in self.run.calls:
            if (call.seq, call.attempt) == (seq, attempt):
                status = ToolStatus.ERROR if call.name == "n" * 300 else ToolStatus.DONE
                self.write(self.history.finished_tool(call.id, f"result of {call.id} of {call.model_seq}", status))
                return
        self.write(self.answer())

    def answer(self) -> History:
        given = sum(isinstance(record.event, ModelStepCompleted) for record in self.history.records)
        answer = self.script[given] if given < len(self.script) else FINAL_ANSWER
        if self.run.step.failures < answer.failures:
            return self.history.failed_model(Reason.OVERLOADED, retry_in=1_000, usage=Usage(input_tokens=3))
        return self.history.answers(
            content_json=answer.content_json, stop_reason=answer.stop_reason, usage=answer.usage, cost=answer.cost
        )

    def wait(self, decision: Decision) -> None:
        assert isinstance(decision, WaitUntil)
        self.history = self.history.after(decision.at - self.history.now)


def pauses(history: History) -> list[bool]:
    """For each assistant message of the conversation, whether it was a pause."""
    answers = [record.event for record in history.records if isinstance(record.event, ModelStepCompleted)]
    return [
        answer.stop_reason == "pause_turn"
        for answer in answers
        if answer.stop_reason in ("tool_use", "pause_turn") and read_turn(answer.content_json).rendered is not None
    ]


def outcome(run: Run) -> dict[str, Any]:
    """Everything that must not depend on who ran it, how often it died, and in which order its steps ended."""
    return {
        "status": run.status,
        "reason": run.reason,
        "output": run.output,
        "messages": run.messages,
        "digest": run.digest,
        "usage": run.usage,
        "wasted": run.wasted,
        "cost": run.cost,
        "seq": run.next_seq,
        "step": run.step.seq,
    }
