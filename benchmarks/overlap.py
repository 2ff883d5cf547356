"""What Runfold adds to a step, as a run feels it: from the end of one body to the beginning of the next.

One run alternates calls of a model that takes 20 ms and of a tool that takes 5 ms and only reads; in the strict order, and with
overlap, where what is harmless begins while the commit that led to it is under way. Beside it the cycle of the bare lane
(benchmarks/lane.py). Each in a process of its own, in turn, twice, on one local broker.

    ./dev python benchmarks/overlap.py [--seconds 10] [--bootstrap HOST:PORT]

Prints one JSON line: added_ms {strict, overlapped} as p50 and p99, lane_ms, strict_to_lane (p50 in bare cycles), and whether the
targets hold: overlapped p50 <= 1.2 ms, strict_to_lane <= 1.5. Exit code 1 when one does not.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from prometheus_client import CollectorRegistry

from runfold.core.events import SideEffect
from runfold.local import LocalStack
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolPolicy, ToolResult
from runfold.telemetry.metrics import WorkerMetrics
from runfold.telemetry.watch import Watch

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, too
from benchmarks.engine import RESULT, WARM_SECONDS, at_work, endless, in_process_of_its_own  # after the line above
from benchmarks.lane import percentiles

MODEL_SECONDS, TOOL_SECONDS = 0.020, 0.005
OVERLAPPED_MS, STRICT_TO_LANE = 1.2, 1.5  # the targets


class Gaps:
    """Times from the end of a body to the beginning of the next one."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._ended: float | None = None

    async def body(self, seconds: float) -> None:
        if self._ended is not None:
            self.seconds.append(time.perf_counter() - self._ended)
        await asyncio.sleep(seconds)
        self._ended = time.perf_counter()


class SlowModel:
    def __init__(self, gaps: Gaps) -> None:
        self._gaps = gaps

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        await self._gaps.body(MODEL_SECONDS)
        return endless(request)


class ReadingTools:
    def __init__(self, gaps: Gaps) -> None:
        self._gaps = gaps

    def policy(self, name: str) -> ToolPolicy:
        return ToolPolicy(side_effect=SideEffect.READ)

    async def call(self, request: ToolCallRequest) -> ToolResult:
        await self._gaps.body(TOOL_SECONDS)
        return RESULT


async def measure(bootstrap: str, seconds: float, overlap: bool) -> dict[str, float]:
    gaps = Gaps()
    watch = Watch("bench", WorkerMetrics(CollectorRegistry()))
    stop = await at_work(bootstrap, 1, 1, SlowModel(gaps), ReadingTools(gaps), watch, overlap)
    await asyncio.sleep(WARM_SECONDS)
    gaps.seconds.clear()
    await asyncio.sleep(seconds)
    stop.set()
    return percentiles(gaps.seconds)


def compare(bootstrap: str, seconds: float) -> dict[str, Any]:
    what: dict[str, tuple[str, ...]] = {"lane": ("lane",), "strict": ("overlap",), "overlapped": ("overlap", "--overlapped")}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in what}
    for _ in range(2):
        for name, (module, *more) in what.items():
            seen[name].append(in_process_of_its_own(module, bootstrap, 1, 1, seconds / 2, *more))
    ms = {name: {key: _mean(results, key) for key in ("p50", "p99")} for name, results in seen.items()}
    ratio = round(ms["strict"]["p50"] / ms["lane"]["p50"], 2)
    return {
        "added_ms": {"strict": ms["strict"], "overlapped": ms["overlapped"]},
        "lane_ms": ms["lane"],
        "strict_to_lane": ratio,
        "ok": ms["overlapped"]["p50"] <= OVERLAPPED_MS and ratio <= STRICT_TO_LANE,
    }


def _mean(results: list[dict[str, float]], key: str) -> float:
    return round(mean(result[f"{key}_ms"] for result in results), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--bootstrap", default="", help="a running Kafka instead of one started here")
    parser.add_argument("--alone", action="store_true", help="one measurement, in this process")
    parser.add_argument("--overlapped", action="store_true", help="of the overlapped order")
    parser.add_argument("--runs", "--partitions", type=int, default=1, help=argparse.SUPPRESS)
    words = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if words.alone:
        print(json.dumps(asyncio.run(measure(words.bootstrap, words.seconds, words.overlapped))), flush=True)
        os._exit(0)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root,
        LocalStack(Path(root), bootstrap=words.bootstrap, dsn="none needed") as stack,
    ):
        result = compare(stack.bootstrap, words.seconds)
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
