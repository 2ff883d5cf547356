"""Given what happened to a run, when this happens, then that is decided: the log of one run, written fluently and folded.

    history = given("Which tickets are overdue?", token_budget=1000).started().answers(tool_use("t1", "search", {"q": "x"}))
    assert history.run.calls[0].name == "search"
    assert history.finished_tool("t1", "none").decisions() == [CallModel(3, 1, 975), WaitUntil(history.run.deadline)]

Every record is `STEP_MS` after the one before; `after` makes a pause. The log begins with a lease, so `Shard` reads it as well.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from runfold.core.decide import Attempt, decide
from runfold.core.decisions import Decision
from runfold.core.events import (
    AgentDefinition,
    Event,
    LeaseAcquired,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Reason,
    Record,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunStarted,
    RunSuspended,
    SideEffect,
    Status,
    StepAborted,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.core.reserving import Tariff
from runfold.core.run import Call, Run, evolve

RUN_ID = "6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e10"
START_MS = 1_767_225_600_000  # broker time of the first record
STEP_MS = 10
DEFINITION = AgentDefinition(
    name="assistant",
    model="claude-opus-5-5",
    max_tokens=4096,
    system_json="[]",
    tools_json="[]",
    options_json="{}",
    hash="0" * 64,
)


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool_use(id_: str, name: str = "search", input_: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {} if input_ is None else input_}


def given(input_: str = "go", *, agent: str = "assistant", max_tokens: int | None = None, **limits: Any) -> "History":
    """A run that was requested; ``limits`` are fields of `Limits`."""
    lease = Record(LeaseAcquired(partition=0, worker="worker-1", build="test"), 0, 0, START_MS - STEP_MS)
    request = RunRequested(run_id=RUN_ID, agent=agent, input=input_, max_tokens=max_tokens, limits=Limits(**limits))
    record = Record(request, 0, 1, START_MS)
    run = evolve(None, record)
    assert run is not None
    return History((lease, record), run)


@dataclass(frozen=True)
class History:
    """The log of one run and what it folds to. Every method returns a longer history; none changes this one."""

    records: tuple[Record, ...]
    run: Run
    epoch: int = 0
    now: int = START_MS  # broker ms of the last record, or after the last pause

    # ---- then

    def decisions(self, busy: Collection[Attempt] = (), since: int = 0, tariff: Tariff | None = None) -> list[Decision]:
        return decide(self.run, self.now, busy, since, tariff)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as a request holds it."""
        return [{"role": message.role, "content": json.loads(message.content_json)} for message in self.run.messages]

    # ---- when

    def when(self, *events: Event) -> "History":
        """Any events, one after the other."""
        history = self
        for event in events:
            history = history._append(event)
        return history

    def after(self, ms: int) -> "History":
        """The next record comes ``ms`` later."""
        return replace(self, now=self.now + ms)

    def taken_over(self, worker: str = "worker-2") -> "History":
        """Another owner: its lease, whose offset is the epoch of what follows."""
        history = self._append(LeaseAcquired(partition=0, worker=worker, build="test"))
        return replace(history, epoch=history.records[-1].offset)

    def cancel_requested(self, command_id: str = "c1", requested_by: str = "alice", detail: str = "") -> "History":
        return self._append(
            RunCancelRequested(run_id=self.run.id, command_id=command_id, requested_by=requested_by, detail=detail)
        )

    def started(self, **definition: Any) -> "History":
        """``definition`` are fields of `AgentDefinition` that differ from `DEFINITION`."""
        frozen = replace(DEFINITION, **definition)
        return self._append(RunStarted(run_id=self.run.id, epoch=self.epoch, definition=frozen, deadline=self.run.deadline))

    def started_model(
        self, reserved_tokens: int = 4096, *, prefix_digest: str | None = None, reserved_cost: Decimal | None = None
    ) -> "History":
        """The next attempt of the model step that is due; ``prefix_digest``: as if it was sent another conversation."""
        step = self.run.step
        return self._append(
            ModelStepStarted(
                run_id=self.run.id,
                epoch=self.epoch,
                seq=step.seq,
                attempt=step.attempt + 1,
                prefix_digest=self.run.digest if prefix_digest is None else prefix_digest,
                reserved_tokens=reserved_tokens,
                reserved_cost=reserved_cost,
            )
        )

    def answers(
        self,
        *blocks: dict[str, Any],
        stop_reason: str | None = None,
        content_json: str | None = None,
        input_tokens: int = 10,
        output_tokens: int = 5,
        usage: Usage | None = None,
        cost: Decimal | None = Decimal("0.001"),
        stop_details_json: str | None = None,
    ) -> "History":
        """The model answers, after a start if none is open. ``stop_reason`` follows from the blocks where it is not given."""
        history = self if self.run.step.open else self.started_model()
        asks = any(block.get("type") == "tool_use" for block in blocks)
        return history._append(
            ModelStepCompleted(
                run_id=self.run.id,
                epoch=self.epoch,
                seq=history.run.step.seq,
                attempt=history.run.step.attempt,
                content_json=json.dumps(blocks) if content_json is None else content_json,
                stop_reason=stop_reason or ("tool_use" if asks else "end_turn"),
                stop_details_json=stop_details_json,
                usage=usage or Usage(input_tokens=input_tokens, output_tokens=output_tokens),
                cost=cost,
                model=DEFINITION.model,
                message_id="msg_1",
                request_id="req_1",
                latency_ms=STEP_MS,
            )
        )

    def failed_model(
        self, reason: Reason, *, retry_in: int | None = None, usage: Usage | None = None, cost: Decimal | None = None
    ) -> "History":
        """The attempt fails, after a start if none is open. ``retry_in`` ms from now; None: for good."""
        history = self if self.run.step.open else self.started_model()
        return history._append(
            ModelStepFailed(
                run_id=self.run.id,
                epoch=self.epoch,
                seq=history.run.step.seq,
                attempt=history.run.step.attempt,
                reason=reason,
                http_status=None,
                error_type=None,
                message=f"the model said {reason}",
                retry_at=None if retry_in is None else history.now + retry_in,
                usage=usage,
                cost=cost,
                request_id=None,
                latency_ms=STEP_MS,
            )
        )

    def aborted(self, tool_use_id: str | None = None) -> "History":
        """Its owner lets go in the middle of the open attempt: of a tool call, or of the model step."""
        step = self.run.step if tool_use_id is None else self._call(tool_use_id)
        return self._append(StepAborted(run_id=self.run.id, epoch=self.epoch, seq=step.seq, attempt=step.attempt))

    def started_tool(self, tool_use_id: str, *, repeatable: bool = True) -> "History":
        """The next attempt of a call of the current turn."""
        call = self._call(tool_use_id)
        return self._append(
            ToolStepStarted(
                run_id=self.run.id,
                epoch=self.epoch,
                seq=call.seq,
                model_seq=call.model_seq,
                tool_use_id=call.id,
                name=call.name,
                input_json=call.input_json,
                idempotency_key=f"{self.run.id}/{call.model_seq}/{call.id}",
                attempt=call.attempt + 1,
                side_effect=SideEffect.WRITE,
                repeatable=repeatable,
            )
        )

    def finished_tool(
        self, tool_use_id: str, content: Any = "ok", status: ToolStatus = ToolStatus.DONE, *, content_json: str | None = None
    ) -> "History":
        """A call ends, after a start if it is not open. ``content``: text, or content blocks."""
        history = self if self._call(tool_use_id).open else self.started_tool(tool_use_id)
        call = history._call(tool_use_id)
        return history._append(
            ToolStepFinished(
                run_id=self.run.id,
                epoch=self.epoch,
                seq=call.seq,
                model_seq=call.model_seq,
                tool_use_id=call.id,
                attempt=call.attempt,
                status=status,
                content_json=json.dumps(content) if content_json is None else content_json,
                latency_ms=STEP_MS,
            )
        )

    def suspended(self, reason: Reason, tool_use_id: str | None = None) -> "History":
        return self._append(
            RunSuspended(run_id=self.run.id, epoch=self.epoch, reason=reason, detail=reason.lower(), tool_use_id=tool_use_id)
        )

    def finished(
        self, status: Status = Status.SUCCEEDED, reason: Reason = Reason.FINAL_ANSWER, command_id: str | None = None
    ) -> "History":
        return self._append(
            RunFinished(
                run_id=self.run.id,
                epoch=self.epoch,
                status=status,
                reason=reason,
                detail="",
                output=self.run.output,
                command_id=command_id,
                steps=self.run.steps,
                usage=self.run.usage,
                cost=self.run.cost,
            )
        )

    # ---- inside

    def _call(self, tool_use_id: str) -> Call:
        calls = {call.id: call for call in self.run.calls}
        if tool_use_id not in calls:
            raise LookupError(f"the turn that is being answered has no tool_use {tool_use_id!r}, only {sorted(calls)}")
        return calls[tool_use_id]

    def _append(self, event: Event) -> "History":
        record = Record(event, 0, self.records[-1].offset + 1, self.now + STEP_MS)
        run = evolve(self.run, record)
        assert run is not None
        return replace(self, records=(*self.records, record), run=run, now=record.timestamp)
