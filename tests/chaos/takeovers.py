"""Taking over a partition with a long past: what is old costs nothing, however much of it there is."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from confluent_kafka import Producer

from runfold.core.events import Event, LeaseAcquired, Reason
from runfold.log.codec import TYPE_HEADER, Codec, record_type
from runfold.log.kafka.position import Positions
from runfold.log.wire import key_of
from runfold.testing.given import History, given, text, tool_use
from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import Ground, ground
from tests.chaos.kills import kill, made_good
from tests.chaos.load import Plan

TARGET = 2.0  # seconds
ACTIVE = 0.1  # of the open runs; the others wait for a person
CARRY_SECONDS = 300.0  # for the first fold of it all, and the snapshots
_OWNS = re.compile(r"owns partition 0, epoch (\d+), after (\d+) ms")


async def take_over(bootstrap: str, root: Path, seed: int, *, events: int, runs: int, kills: int, lean: bool) -> Report:
    report = Report(f"takeover of a partition with {events} old events and {runs} open runs, {kills} times, seed {seed}")
    active = int(runs * ACTIVE)
    plan = Plan(active, turns=10, fastest=1.0, slowest=3.0)
    pauses, killed = list[float](), list[int]()
    async with ground(bootstrap, root, seed=seed, plan=plan, partitions=1, lean=lean) as field:
        began = time.monotonic()
        written = await asyncio.to_thread(fill, field, runs - active, events)
        await field.until("the past to be read", lambda: field.watcher.ends[0] >= written, 300)
        report.say(f"{written} records in {time.monotonic() - began:.0f} s")
        await field.start("worker-A")
        await field.busy()
        await _carried(field, written, report)
        for _ in range(kills):
            await made_good(field, report, "worker-A")
            times, pid = await kill(field, "worker-A")
            pauses += times
            killed.append(pid)
        first, *later = _takeovers(field)
        report.say(f"the very first, over everything {first:.1f} s")
        report.at_most("takeover, the fence included max", largest(later[-kills:]), TARGET, " s")
        report.say(f"p50 {percentile(later[-kills:], 50):.2f} s, kill to next step max {largest(pauses):.2f} s")
        await field.judge(report, killed=killed)
    return report


async def _carried(field: Ground, written: int, report: Report) -> None:
    """Until the group's offset says that nothing before the bulk's end is needed any more."""
    positions = Positions(field.settings)
    try:
        deadline = time.monotonic() + CARRY_SECONDS
        while (low := (await positions.of(0)).low) < written * 0.99:
            assert time.monotonic() < deadline, f"after {CARRY_SECONDS:.0f} s folding still begins at {low} of {written}"
            await field.wait(0.5)
    finally:
        positions.close()
    report.say(f"folding starts at {low}")


def _takeovers(field: Ground) -> list[float]:
    """Seconds of each takeover, as the worker measured them from the first thought of the partition to its lease."""
    found = [_OWNS.search(message) for message in field.processes.messages("worker-A")]
    return [int(match[2]) / 1000 for match in found if match]


# ---- the past


def fill(field: Ground, waiting: int, events: int) -> int:
    """Write old open runs, then ended ones, all under one lease of a worker that is gone; how many records. Blocks."""
    codec, draw = Codec(), Random(field.draw.random())
    topic, producer = field.settings.topic, Producer({"bootstrap.servers": field.settings.bootstrap, "linger.ms": 20})
    count = 0
    for key, value, kind in _past(codec, draw, waiting, events):
        while True:
            try:
                producer.produce(topic, value, key, 0, headers=[(TYPE_HEADER, kind)])
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    assert producer.flush(60) == 0
    return count


Raw = tuple[bytes, bytes, bytes]  # key, value, type


def _past(codec: Codec, draw: Random, waiting: int, events: int) -> Iterator[Raw]:
    """Both kinds of run are written once, by the rules, and copied under other ids."""
    yield _raw(LeaseAcquired(partition=0, worker="gone", build="old"), codec)
    answer = given("wait").started().answers(text("?"), stop_reason="no_such_reason")
    suspended = _encoded(answer.suspended(Reason.UNKNOWN_STOP_REASON), codec)
    history = given("go").started()
    for turn in range(3):
        history = history.answers(tool_use(f"toolu_{turn}", "act")).finished_tool(f"toolu_{turn}", "done " * 20)
    ended = _encoded(history.answers(text("That is all.")).finished(), codec)
    for _ in range(waiting):
        yield from _copy(suspended, draw)
    for _ in range(events // len(ended)):
        yield from _copy(ended, draw)


def _encoded(history: History, codec: Codec) -> list[Raw]:
    return [_raw(record.event, codec) for record in history.records[1:]]


def _raw(event: Event, codec: Codec) -> Raw:
    return key_of(event), codec.encode(event), record_type(event)


def _copy(records: list[Raw], draw: Random) -> Iterator[Raw]:
    """The id is text wherever it stands, and of the same length: it is changed in the encoded records."""
    new = str(UUID(int=draw.getrandbits(128), version=4)).encode()
    for key, value, kind in records:
        yield new, value.replace(key, new), kind
