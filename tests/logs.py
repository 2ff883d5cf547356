"""Logs written by hand, one record per line of a test; and logs written by chance, from a seed.

    log = ScriptedLog()
    log.lease("worker-A")
    run = log.request("Which tickets are overdue?")
    run.start().call_model().ask("a").call_tool("a").tool_ends("a").call_model().say("None.").finish()
    fold(log.records)

The log folds what is written: a script need not say the seq and attempt of a step. What it writes need not make sense; any
field of an event can be given by name.
"""

import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from runfold.core import snapshot
from runfold.core.events import (
    AgentDefinition,
    Delivery,
    Event,
    LeaseAcquired,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Problem,
    Reason,
    Record,
    RunCancelRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    SideEffect,
    Status,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Unreadable,
    Usage,
)
from runfold.core.run import Call, Run
from runfold.core.shard import Shard
from runfold.log.partitioner import partition_of

MODEL = "model-1"
AGENT = AgentDefinition(
    name="default", model=MODEL, max_tokens=1000, system_json="[]", tools_json="[]", options_json="{}", hash="a" * 64
)
NOON = 1_700_000_000_000  # broker ms


def run_id(number: int) -> str:
    """A canonical id that tests can tell apart."""
    return str(UUID(int=0x6F1C0A52_0000_4000_8000_000000000000 + number))


class ScriptedLog:
    """One partition. Records are 1 ms apart, unless `pass_time` says otherwise, and have no gaps, unless `leave_gap` does.

    With ``partitions``, ids are chosen so that their runs belong into ``partition`` of so many.
    """

    def __init__(self, partition: int = 0, first_offset: int = 0, partitions: int | None = None) -> None:
        self.partition, self.next_offset, self.now = partition, first_offset, NOON
        self._partitions = partitions
        self.deliveries: list[Delivery] = []
        self.shard = Shard(partition)
        self._ids = 0 if partitions else partition * 1_000_000

    @property
    def records(self) -> list[Record]:
        return [delivery for delivery in self.deliveries if isinstance(delivery, Record)]

    def append(self, event: Event) -> Record:
        record = Record(event, self.partition, self.next_offset, self.now)
        self.deliveries.append(record)
        self.shard.apply(record)
        self._advance()
        return record

    def unreadable(self, problem: Problem = Problem.NULL_VALUE, key: bytes | None = None) -> None:
        self.deliveries.append(Unreadable(self.partition, self.next_offset, self.now, key, None, problem, "written by a test"))
        self._advance()

    def _advance(self) -> None:
        self.next_offset, self.now = self.next_offset + 1, self.now + 1

    def leave_gap(self, offsets: int = 1) -> None:
        """As transaction markers do."""
        self.next_offset += offsets

    def pass_time(self, ms: int) -> None:
        self.now += ms

    def lease(self, worker: str = "worker-A") -> int:
        """The epoch of the new lease."""
        return self.append(LeaseAcquired(partition=self.partition, worker=worker, build="test")).offset

    def request(self, text: str = "go", id_: str | None = None, **fields: Any) -> "RunScript":
        """A RunRequested; the script of its run."""
        event = RunRequested(**{"run_id": id_ or self._new_id(), "agent": "default", "input": text} | fields)
        self.append(event)
        return RunScript(self, event.run_id)

    def _new_id(self) -> str:
        self._ids += 1
        while self._partitions and partition_of(run_id(self._ids).encode(), self._partitions) != self.partition:
            self._ids += 1
        return run_id(self._ids)


@dataclass
class RunScript:
    """Appends records of one run. Every method returns the script, for chains."""

    log: ScriptedLog
    id: str
    last: Run | None = field(default=None, init=False)

    @property
    def run(self) -> Run:
        """The run as the log has it; as it was last, once it ended."""
        self.last = self.log.shard.runs.get(self.id, self.last)
        assert self.last is not None, "the log has no open run of this script"
        return self.last

    def call(self, tool_use_id: str) -> Call:
        return next(call for call in self.run.calls if call.id == tool_use_id)

    def append(self, event: type, **fields: Any) -> "RunScript":
        """Any owner event of this run, under the newest lease unless ``epoch`` is given."""
        self.log.append(event(**{"run_id": self.id, "epoch": self.log.shard.epoch} | fields))
        return self

    def start(self, **fields: Any) -> "RunScript":
        return self.append(RunStarted, **{"definition": AGENT, "deadline": self.run.deadline} | fields)

    def call_model(self, **fields: Any) -> "RunScript":
        """The next attempt of the model step that is due."""
        step = self.run.step
        given = {"seq": step.seq, "attempt": step.attempt + 1, "prefix_digest": self.run.digest, "reserved_tokens": 1000}
        return self.append(ModelStepStarted, **given | fields)

    def answer(self, blocks: list[dict[str, Any]], stop_reason: str, **fields: Any) -> "RunScript":
        step = self.run.step
        given = {
            "seq": step.seq,
            "attempt": step.attempt,
            "content_json": json.dumps(blocks),
            "stop_reason": stop_reason,
            "stop_details_json": None,
            "usage": Usage(input_tokens=800 + step.seq, output_tokens=60),
            "cost": Decimal("0.001"),
            "model": MODEL,
            "message_id": None,
            "request_id": None,
            "latency_ms": 1830,
        }
        return self.append(ModelStepCompleted, **given | fields)

    def ask(self, *tool_use_ids: str, tool: str = "list_tickets", **fields: Any) -> "RunScript":
        """The model asks for tools."""
        blocks = [{"type": "tool_use", "id": id_, "name": tool, "input": {}} for id_ in tool_use_ids]
        return self.answer(blocks, "tool_use", **fields)

    def say(self, text: str = "done", stop_reason: str = "end_turn", **fields: Any) -> "RunScript":
        return self.answer([{"type": "text", "text": text}], stop_reason, **fields)

    def model_fails(self, reason: Reason = Reason.OVERLOADED, retry_in: int | None = 1000, **fields: Any) -> "RunScript":
        """``retry_in`` ms from now; None: not retried."""
        step = self.run.step
        given = {
            "seq": step.seq,
            "attempt": step.attempt,
            "reason": reason,
            "http_status": 529,
            "error_type": "overloaded_error",
            "message": "Overloaded",
            "retry_at": None if retry_in is None else self.log.now + retry_in,
            "usage": None,
            "request_id": None,
            "latency_ms": 12,
        }
        return self.append(ModelStepFailed, **given | fields)

    def call_tool(self, tool_use_id: str, **fields: Any) -> "RunScript":
        """The next attempt of a call that the model asked for."""
        call = self.call(tool_use_id)
        given = {
            "seq": call.seq,
            "model_seq": call.model_seq,
            "tool_use_id": call.id,
            "name": call.name,
            "input_json": call.input_json,
            "idempotency_key": f"{self.id}/{call.model_seq}/{call.id}",
            "attempt": call.attempt + 1,
            "side_effect": SideEffect.READ,
            "repeatable": True,
        }
        return self.append(ToolStepStarted, **given | fields)

    def tool_ends(
        self, tool_use_id: str, content: str = "ok", status: ToolStatus = ToolStatus.DONE, **fields: Any
    ) -> "RunScript":
        call = self.call(tool_use_id)
        given = {
            "seq": call.seq,
            "model_seq": call.model_seq,
            "tool_use_id": call.id,
            "attempt": call.attempt,
            "status": status,
            "content_json": json.dumps(content),
            "latency_ms": 41,
        }
        return self.append(ToolStepFinished, **given | fields)

    def suspend(self, reason: Reason = Reason.BUDGET, detail: str = "", tool_use_id: str | None = None) -> "RunScript":
        return self.append(RunSuspended, reason=reason, detail=detail, tool_use_id=tool_use_id)

    def resume(self, command_id: str = "resume-1", **limits: Any) -> "RunScript":
        """The command and what its owner makes of it."""
        given = {"token_budget": None, "cost_ceiling": None, "max_steps": None} | limits
        self.log.append(RunResumeRequested(run_id=self.id, command_id=command_id, requested_by="test", **given))
        return self.append(RunResumed, command_id=command_id, **given)

    def snapshot(self, **fields: Any) -> "RunScript":
        given = {"last_offset": self.run.last_offset, "state_version": snapshot.VERSION}
        return self.append(RunSnapshotted, **given | {"state_json": snapshot.to_text(self.run)} | fields)

    def cancel(self, command_id: str = "cancel-1") -> "RunScript":
        self.log.append(RunCancelRequested(run_id=self.id, command_id=command_id, requested_by="test"))
        return self

    def finish(self, status: Status | None = None, reason: Reason | None = None, **fields: Any) -> "RunScript":
        """RunFinished as an owner would write it: by the run's verdict, unless ``status`` and ``reason`` say otherwise."""
        run = self.run
        verdict = run.verdict
        given = {
            "status": status or (verdict.status if verdict else Status.SUCCEEDED),
            "reason": reason or (verdict.reason if verdict else Reason.FINAL_ANSWER),
            "detail": verdict.detail if verdict else "",
            "output": run.output,
            "command_id": None,
            "steps": run.steps,
            "usage": run.usage,
            "cost": run.cost,
        }
        return self.append(RunFinished, **given | fields)

    def to_the_end(self, tools: int = 1) -> "RunScript":
        """From the request to a final answer: ``tools`` tool calls, one per turn."""
        self.start()
        for number in range(tools):
            id_ = f"toolu_{number}"
            self.call_model().ask(id_).call_tool(id_).tool_ends(id_)
        return self.call_model().say().finish()


def random_log(seed: int, records: int, partition: int = 0, partitions: int | None = None) -> ScriptedLog:
    """What owners, requesters and accidents may leave in a partition, some of it nonsense. The same seed, the same log."""
    chance = random.Random(f"{seed}/{partition}")
    log = ScriptedLog(partition, partitions=partitions)
    log.lease("worker-0")
    scripts: list[RunScript] = []
    while len(log.deliveries) < records:
        open_runs = [script for script in scripts if script.id in log.shard.runs]
        if chance.random() < 0.1:
            _accident(chance, log, scripts)
        elif len(open_runs) < 3 or chance.random() < 0.05:
            limits = Limits(token_budget=chance.choice([None, 50_000]), timeout_ms=chance.choice([None, 300_000]))
            scripts.append(log.request(chance.choice(["go", "why?", " "]), limits=limits, tenant=chance.choice([None, "acme"])))
        else:
            _owner_writes(chance, chance.choice(open_runs))
    return log


def _owner_writes(chance: random.Random, script: RunScript) -> None:
    run = script.run
    if chance.random() < 0.05:
        script.snapshot()
    elif run.inbox and chance.random() < 0.5:
        script.finish(Status.CANCELLED, Reason.CANCEL, command_id=run.inbox[0].command_id)
    elif run.status is Status.SUSPENDED and chance.random() < 0.3:
        script.resume(f"resume-{chance.randrange(3)}", token_budget=chance.choice([None, 90_000]))
    elif run.verdict is not None:
        ends = run.verdict.status.final
        script.finish() if ends else script.suspend(run.verdict.reason, run.verdict.detail)
    elif run.started is None:
        script.start()
    elif run.calls:
        _tool_event(chance, script, chance.choice([call for call in run.calls if call.status is None]))
    else:
        _model_event(chance, script)


def _tool_event(chance: random.Random, script: RunScript, call: Call) -> None:
    if not call.open or chance.random() < 0.1:  # the latter: its worker died
        script.call_tool(call.id, side_effect=chance.choice(list(SideEffect)))
    else:
        status = chance.choice(list(ToolStatus))
        script.tool_ends(call.id, chance.choice(["ok", "no"]), status, latency_ms=chance.randrange(99))


def _model_event(chance: random.Random, script: RunScript) -> None:
    if not script.run.step.open or chance.random() < 0.1:
        script.call_model()
        return
    usage = Usage(input_tokens=chance.randrange(900), output_tokens=chance.randrange(90), cache_read_tokens=chance.randrange(9))
    match chance.randrange(10):
        case 0 | 1 | 2 | 3:
            script.ask(*(f"toolu_{script.run.step.seq}_{n}" for n in range(chance.randrange(1, 4))), usage=usage)
        case 4 | 5:
            reason, cost = chance.choice(["end_turn", "refusal", "weird"]), chance.choice([None, Decimal("0.02")])
            script.say("done", reason, usage=usage, cost=cost)
        case 6:
            script.say("half a", chance.choice(["max_tokens", "pause_turn"]), usage=usage)
        case 7 | 8:
            script.model_fails(retry_in=1000, usage=chance.choice([None, usage]))
        case _:
            script.model_fails(chance.choice([Reason.MODEL_ACCESS, Reason.MODEL_REQUEST]), retry_in=None)


def _accident(chance: random.Random, log: ScriptedLog, scripts: list[RunScript]) -> None:
    match chance.randrange(8):
        case 0:
            log.lease(f"worker-{chance.randrange(3)}")
        case 1:
            log.unreadable(chance.choice(list(Problem)))
        case 2:
            log.leave_gap(chance.randrange(1, 4))
        case 3:
            log.pass_time(chance.randrange(-1000, 60_000))
        case 4:  # something is said twice: a second request, a result after the end, an event of a former owner
            log.append(chance.choice(log.records).event)
        case 5:
            RunScript(log, run_id(999_999)).cancel()  # there is no such run
        case _ if scripts:
            chance.choice(scripts).cancel(f"cancel-{chance.randrange(3)}")
        case _:
            log.leave_gap()
