"""The log of a release, kept for ever: ``logs/<version>.jsonl``, a record a line; its runs in ``logs/<version>.runs.json``.

``python -m tests.replay.golden_log`` writes the log of the version that the package has now, once, by running the real engine on
the memory log: runs that succeed with parallel tools, fail, are retried, truncated, suspended, cancelled, quarantined, repeated.
Nothing here is ever edited afterwards.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from runfold.core.errors import ModelFailure
from runfold.core.events import Limits, Reason, Record, RunCancelRequested, RunRequested, RunResumeRequested, ToolStatus, Usage
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.log.codec import Codec, record_type
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryMembership
from runfold.log.wire import RawRecord, key_of, read
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from runfold.worker import carrier
from tests.engine import Engine, Ledger, NoRetry, ScriptedTools, answer, done, text, tool_use, turn_of

LOGS = Path(__file__).parent / "logs"
NAMESPACE = UUID("6f1c0a52-7a1e-4c7e-9d53-2f0c6f6a9b11")

TWO_TOOLS = tool_use(("a", "first", {"n": 1}), ("b", "second", {"text": "ünïcödé"}))
STORIES: dict[str, list[ModelAnswer]] = {
    "succeeds": [TWO_TOOLS, text("done")],
    "empty answer": [TWO_TOOLS, answer([], "end_turn")],
    "thinks": [answer([{"type": "thinking", "thinking": "", "signature": "c2ln"}, {"type": "text", "text": "42"}], "end_turn")],
    "truncated": [answer([{"type": "text", "text": "cu"}], "max_tokens")],
    "refused": [answer([], "refusal")],
    "context": [answer([{"type": "text", "text": "half"}], "model_context_window_exceeded")],
    "unknown stop": [answer([{"type": "text", "text": "?"}], "brand_new")],
    "twice the id": [tool_use(("a", "first", {}), ("a", "first", {}))],
    "no object": [tool_use(("a", "first", "text")), text("done")],
    "unrepeatable": [tool_use(("a", "charge", {})), text("never")],
    "unpriced": [answer([{"type": "text", "text": "?"}], "end_turn", model="unknown-9")],
    "budget": [TWO_TOOLS, text("never")],
    "steps": [TWO_TOOLS, text("never")],
    "cancelled": [],
    "fails for good": [],
    "fails once": [text("done")],
    " ": [],
}
LIMITS = {"budget": Limits(token_budget=15), "steps": Limits(max_steps=2), "unpriced": Limits(timeout_ms=60_000)}


class GoldenTools(ScriptedTools):
    def policy(self, name: str) -> ToolPolicy:
        return ToolPolicy(repeatable=name != "charge")


async def _tool(request: ToolCallRequest) -> ToolResult:
    if request.name == "charge":
        return ToolResult(ToolStatus.TIMED_OUT, '"timed out"')
    if request.tool_use_id == "b":
        return ToolResult(ToolStatus.ERROR, '"it broke"')
    return done("ok")


def _model(request: ModelRequest) -> Any:
    story = json.loads(request.messages[0].content_json)[0]["text"]
    if story == "fails for good" or (story == "fails once" and request.attempt == 1):
        raise ModelFailure(
            Reason.OVERLOADED,
            "come back later",
            retryable=True,
            http_status=529,
            error_type="overloaded_error",
            usage=Usage(input_tokens=3),
        )
    if story == "cancelled":
        return asyncio.Event().wait()
    answers = STORIES[story]
    return answers[min(turn_of(request), len(answers)) - 1]


async def play() -> MemoryBroker:
    """A broker whose two partitions hold every story, carried by one owner after the other."""
    carrier.BEHIND, carrier.FACTOR, carrier.LOOK_EVERY = 30, 0, 1  # snapshots, although the log is short
    clock = count(1_700_000_000_000)
    broker, ledger = MemoryBroker(2, lambda: next(clock)), Ledger()
    seat = MemoryMembership(broker.group)
    seat.join(lambda partitions: None)
    seat.poll(0)
    commands = MemoryCommands(broker)
    ids = {story: str(uuid5(NAMESPACE, story)) for story in STORIES}
    for story, run_id in ids.items():
        limits = LIMITS.get(story, Limits())
        await commands.send(
            RunRequested(run_id=run_id, agent="default", input=story, limits=limits, metadata={"story": story}, tenant="acme")
        )
    waiting = {ids["unknown stop"], ids["unrepeatable"], ids["budget"], ids["cancelled"]}
    for name in ("worker-1", "worker-2"):
        engine = Engine(
            MemoryLog(broker),
            ScriptedModel(_model),
            ledger,
            tools=GoldenTools(ledger, _tool),
            retries=NoRetry([0.01]),
            drain_seconds=0.05,
            name=name,
        )
        engine.grant(sorted(seat.owned), seat.proof)
        if name == "worker-1":
            await engine.notes.until(lambda notes=engine.notes: len(notes.ended) == len(ids) - len(waiting))  # type: ignore[misc]
            engine.grant([], seat.proof, leaving=sorted(seat.owned))
            while engine.worker.held:  # noqa: ASYNC110  # it aborts the call of the one that is going to be cancelled
                await asyncio.sleep(0.01)
        else:
            enough = RunCancelRequested(run_id=ids["cancelled"], command_id="c1", requested_by="golden", detail="enough")
            await commands.send(enough)
            more = RunResumeRequested(run_id=ids["budget"], command_id="c3", requested_by="golden", token_budget=1000)
            await commands.send(more)
            await commands.send(RunResumeRequested(run_id=ids["unknown stop"], command_id="c4", requested_by="golden"))
            await engine.notes.until(lambda notes=engine.notes: {ids["cancelled"], ids["budget"]} <= notes.ended.keys())  # type: ignore[misc]
            await commands.send(RunCancelRequested(run_id=ids["succeeds"], command_id="c2", requested_by="golden"))
            await commands.send(RunRequested(run_id=ids["succeeds"], agent="default", input="again"))
            await engine.notes.until(lambda notes=engine.notes: len(notes.ignored_records) >= 2)  # type: ignore[misc]
            await asyncio.sleep(0.05)  # the rejection is written
        await engine.close()
        assert not engine.failures, engine.failures
    return broker


def lines(broker: MemoryBroker) -> Iterator[str]:
    """Every committed record as a line of JSON: where it stands, key, type, and the value in base64."""
    codec = Codec()
    for partition in broker.partitions:
        for stored in partition.visible(0):
            record = read(stored.raw, codec, len(broker.partitions))
            assert isinstance(record, Record)
            yield json.dumps(
                {
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": key_of(record.event).decode(),
                    "type": record_type(record.event).decode(),
                    "value": b64encode(codec.encode(record.event)).decode(),
                }
            )


def read_log(text: str, partitions: int = 2) -> list[Record]:
    """The records of a golden log. Every one must be readable."""
    codec, records = Codec(), []
    for line in text.splitlines():
        raw = json.loads(line)
        where = raw["partition"], raw["offset"], raw["timestamp"]
        delivery = read(RawRecord(*where, raw["key"].encode(), b64decode(raw["value"]), raw["type"].encode()), codec, partitions)
        assert isinstance(delivery, Record), delivery
        records.append(delivery)
    return records


def fold_all(records: list[Record]) -> dict[str, Any]:
    """Every run as the log leaves it, as JSON."""
    shards, runs = {record.partition: Shard(record.partition) for record in records}, dict[str, Any]()
    for record in records:
        outcome = shards[record.partition].apply(record)
        if isinstance(outcome, Run):
            runs[outcome.id] = outcome
    return {run_id: json.loads(json.dumps(asdict(run), default=_plain)) for run_id, run in sorted(runs.items())}


def _plain(value: object) -> str:
    assert isinstance(value, Decimal)
    return str(value)


def main() -> None:
    log = LOGS / f"{version('runfold')}.jsonl"
    LOGS.mkdir(exist_ok=True)
    with log.open("x") as file:
        file.writelines(f"{line}\n" for line in lines(asyncio.run(play())))
    runs = fold_all(read_log(log.read_text()))
    log.with_suffix(".runs.json").write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
