"""Steps per second of the whole engine, beside what the bare lane of benchmarks/lane.py does in the same minute.

The runs alternate model and tool steps whose bodies cost nothing (1 KiB and 256 B): what is measured is Runfold. Engine and lane
run in processes of their own, in turn, twice, on one local broker; the ratio is what holds on noisy machines.

    ./dev python benchmarks/engine.py [--runs 64] [--partitions 4] [--seconds 10] [--bootstrap HOST:PORT]

Prints one JSON line: steps_per_s, step_ms (as a run feels it: from the end of one step to the end of the next) with one run and
with --runs, lane_cycles_per_s and lane_ms of the bare lane, ratio (steps to lane cycles), step_to_lane (p50 with one run, in bare
cycles).
"""

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from statistics import mean
from typing import Any

from prometheus_client import CollectorRegistry

from runfold.config import Settings
from runfold.core.events import (
    AgentDefinition,
    Limits,
    ModelStepCompleted,
    Record,
    RunRequested,
    SideEffect,
    ToolStatus,
    ToolStepFinished,
    Usage,
)
from runfold.core.reserving import Tariff
from runfold.core.run import Run
from runfold.local import LocalStack
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands, KafkaLog, KafkaMembership, create_topic
from runfold.log.partitioner import partition_of
from runfold.model import Backoff, RetryPolicy, ScriptedModel
from runfold.ports import Grant, Model, ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult, Tools
from runfold.telemetry.metrics import WorkerMetrics
from runfold.telemetry.watch import Watch
from runfold.worker.resources import Resources
from runfold.worker.worker import Worker

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, too
from benchmarks.lane import percentiles  # after the line above

WARM_SECONDS = 2.0
BACKOFF = Backoff(attempts=5, base=1.0, cap=60.0)  # no call fails
CONTENT = json.dumps(
    [{"type": "text", "text": "m" * 900}, {"type": "tool_use", "id": "TOOL", "name": "nothing", "input": {"n": 1}}]
)
RESULT = ToolResult(ToolStatus.DONE, json.dumps("t" * 254))


class FreeTools:
    def policy(self, name: str) -> ToolPolicy:
        return ToolPolicy(side_effect=SideEffect.WRITE)

    async def call(self, request: ToolCallRequest) -> ToolResult:
        return RESULT


class OneAgent:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._definition = AgentDefinition(
            name="default", model="free", max_tokens=1000, system_json="[]", tools_json="[]", options_json="{}", hash="0" * 64
        )

    def definition(self, agent: str, *, model: str | None = None, max_tokens: int | None = None) -> AgentDefinition | None:
        return self._definition

    def tools(self, agent: str) -> Tools:
        return self._tools


class NoPrice:
    def cost(self, model: str, usage: Usage, at: int, modifiers: Mapping[str, str]) -> Decimal | None:
        return None

    def tariff(self, definition: AgentDefinition, at: int) -> Tariff | None:
        return None


def endless(request: ModelRequest) -> ModelAnswer:
    content = CONTENT.replace("TOOL", f"t{request.seq}")
    return ModelAnswer(content, "tool_use", Usage(input_tokens=10, output_tokens=10), "free")


class Stopwatch(Watch):
    """The product's own observer, and how long each step took."""

    def __init__(self) -> None:
        super().__init__("bench", WorkerMetrics(CollectorRegistry()))
        self.steps: list[float] = []
        self._last: dict[str, float] = {}
        self.measuring = False

    def applied(self, record: Record, run: Run) -> None:
        super().applied(record, run)
        if isinstance(record.event, ModelStepCompleted | ToolStepFinished):
            now = time.perf_counter()
            if self.measuring and run.id in self._last:
                self.steps.append(now - self._last[run.id])
            self._last[run.id] = now


def hold_seat(settings: Settings, granted: Any, stop: threading.Event) -> None:
    """The keeper's part, in a thread: here nobody dies."""
    seat = KafkaMembership(settings)
    seat.join(lambda partitions: None)
    while not stop.is_set():
        seat.poll(0.05)
        granted(Grant(seat.owned, frozenset(), seat.proof, time.monotonic()))


def spread_ids(runs: int, partitions: int) -> list[str]:
    """Run ids that lie evenly on the partitions."""
    ids: list[str] = []
    while len(ids) < runs:
        if partition_of((id_ := str(uuid.uuid4())).encode(), partitions) == len(ids) % partitions:
            ids.append(id_)
    return ids


async def at_work(
    bootstrap: str, partitions: int, runs: int, model: Model, tools: Tools, watch: Watch, overlap: bool = False
) -> threading.Event:
    """Start a worker and as many runs, on a topic of their own. Set what is returned, and they lose their lease."""
    settings = Settings(bootstrap=bootstrap, topic=f"bench-{uuid.uuid4().hex[:8]}", group=f"bench-{os.getpid()}")
    create_topic(settings, partitions, replication=1)
    codec, loop, stop = Codec(), asyncio.get_running_loop(), threading.Event()
    resources = Resources(
        worker="bench",
        build="bench",
        log=await KafkaLog.open(settings, codec),
        model=model,
        agents=OneAgent(tools),
        pricing=NoPrice(),
        retries=RetryPolicy(overloads=BACKOFF, mishaps=BACKOFF),
        observer=watch,
        overlap=overlap,
    )
    worker = Worker(resources, 5, lambda error: os._exit(1))
    threading.Thread(
        target=hold_seat, args=(settings, lambda grant: loop.call_soon_threadsafe(worker.granted, grant), stop), daemon=True
    ).start()
    commands = KafkaCommands(settings, codec)
    limits = Limits(max_steps=10**9)
    for run_id in spread_ids(runs, partitions):
        await commands.send(RunRequested(run_id=run_id, agent="default", input="go", limits=limits))
    return stop


async def measure(bootstrap: str, partitions: int, runs: int, seconds: float) -> dict[str, float]:
    watch = Stopwatch()
    stop = await at_work(bootstrap, partitions, runs, ScriptedModel(endless), FreeTools(), watch)
    await asyncio.sleep(WARM_SECONDS)
    watch.measuring = True
    await asyncio.sleep(seconds)
    watch.measuring = False
    stop.set()
    return {"per_s": round(len(watch.steps) / seconds), **percentiles(watch.steps)}


# ---- one process per measurement


def in_process_of_its_own(
    what: str, bootstrap: str, partitions: int, runs: int, seconds: float, *more: str
) -> dict[str, float]:
    numbers = {"--bootstrap": bootstrap, "--partitions": partitions, "--runs": runs, "--seconds": seconds}
    words = [str(word) for pair in numbers.items() for word in pair]
    command = ["-m", f"benchmarks.{what}", *(["--alone"] if what != "lane" else []), *more]
    here = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, *command, *words], check=True, stdout=subprocess.PIPE, text=True, cwd=here)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def compare(bootstrap: str, partitions: int, runs: int, seconds: float) -> dict[str, Any]:
    """In turn and twice, so that a slow minute of the machine hits both."""

    def side_by_side(number: int, part: float) -> tuple[dict[str, float], dict[str, float]]:
        lanes, engines = list[dict[str, float]](), list[dict[str, float]]()
        for _ in range(2):
            lanes.append(in_process_of_its_own("lane", bootstrap, partitions, number, part))
            engines.append(in_process_of_its_own("engine", bootstrap, partitions, number, part))
        return _means(lanes), _means(engines)

    lane_many, many = side_by_side(runs, seconds / 2)
    lane_one, one = side_by_side(1, min(seconds, 6) / 2)
    return {
        "steps_per_s": round(many["per_s"]),
        "step_ms": {"1": _ms(one), str(runs): _ms(many)},
        "lane_cycles_per_s": round(lane_many["per_s"]),
        "lane_ms": {"1": _ms(lane_one), str(runs): _ms(lane_many)},
        "ratio": round(many["per_s"] / lane_many["per_s"], 3),
        "step_to_lane": round(one["p50_ms"] / lane_one["p50_ms"], 2),
        "runs": runs,
        "partitions": partitions,
        "seconds": seconds,
    }


def _means(results: list[dict[str, float]]) -> dict[str, float]:
    return {key: mean(result[key] for result in results) for key in results[0]}


def _ms(side: dict[str, float]) -> dict[str, float]:
    return {"p50": round(side["p50_ms"], 2), "p99": round(side["p99_ms"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--bootstrap", default="", help="a running Kafka instead of one started here")
    parser.add_argument("--alone", action="store_true", help="the engine in this process, without the lane")
    words = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if words.alone:
        print(json.dumps(asyncio.run(measure(words.bootstrap, words.partitions, words.runs, words.seconds))), flush=True)
        os._exit(0)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root,
        LocalStack(Path(root), bootstrap=words.bootstrap, dsn="none needed") as stack,
    ):
        print(json.dumps(compare(stack.bootstrap, words.partitions, words.runs, words.seconds)))


if __name__ == "__main__":
    main()
