"""Health that is derived from what was applied, and published by what the loop cannot block (`runfold.worker.vitals`)."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from runfold.cli.wiring import worker as wiring
from runfold.core.errors import ConfigError, LogUnavailable
from runfold.core.events import Unreadable
from runfold.log.memory import MemoryBroker, MemoryLog
from runfold.model.scripted import ScriptedModel
from runfold.ports import Grant
from runfold.telemetry.metrics import WorkerMetrics
from runfold.telemetry.serving import expose
from runfold.worker import vitals
from runfold.worker.standstill import SETTLE_SECONDS, Standstill
from runfold.worker.vitals import BROKER_SECONDS, LOOP_SECONDS, READER_SECONDS, STALL_SECONDS, Blocked, Vitals
from tests.cases.harness_processes import slowness
from tests.engine import Engine, Ledger, text, turns

PATIENCE = 20.0
PROBE_SECONDS = 0.02  # between two questions


class Beside:
    """A worker on a loop of its own thread, as in a process, and its health as the world sees it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._up = threading.Event()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=[self._live()], daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE)

    async def _live(self) -> None:
        self._end = asyncio.Event()
        broker = MemoryBroker(2)
        broker.group.join("group")
        engine = Engine(MemoryLog(broker), ScriptedModel(turns(text("done"))), Ledger())
        health = Vitals(engine.worker)
        wiring.publish(health, WorkerMetrics(self.registry))
        self.port = expose(self.registry, health.troubles, "127.0.0.1", 0)
        self._up.set()
        tasks = [asyncio.create_task(health.watch()), asyncio.create_task(self._keep(engine, broker))]
        await self._end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.close()

    async def _keep(self, engine: Engine, broker: MemoryBroker) -> None:
        while True:
            engine.grant([0, 1], broker.group.proof("group"))
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE)
        self.loop.close()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def until(self, status: int, *words: str) -> dict[str, Any]:
        """What /readyz says, once it says so."""
        deadline, pause = time.monotonic() + PATIENCE, threading.Event()
        while (answer := self.ask("/readyz"))[0] != status or not all(word in answer[1] for word in words):
            assert time.monotonic() < deadline, answer
            pause.wait(PROBE_SECONDS)
        found: dict[str, Any] = json.loads(answer[1])
        return found


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.close()


def test_a_blocked_loop_is_not_ready_within_seconds_and_ready_again_when_it_turns(beside: Beside) -> None:
    """It is really blocked: nothing on it runs, heartbeat, health and timers included."""
    assert beside.until(200) == {"status": "ready", "checks": {}}
    release = threading.Event()
    beside.loop.call_soon_threadsafe(release.wait, PATIENCE)
    began = time.monotonic()
    try:
        said = beside.until(503, "loop")
        assert time.monotonic() - began < (LOOP_SECONDS + 1) * slowness()
        assert said["checks"]["loop"].startswith("blocked for ")
        assert beside.ask("/healthz")[0] == 200
        scraped = beside.ask("/metrics")[1]
        assert 'runfold_partitions_blocked{reason="loop"} 2.0' in scraped
        (age,) = (line for line in scraped.splitlines() if line.startswith("runfold_loop_age_seconds "))
        assert float(age.split()[1]) > LOOP_SECONDS
    finally:
        release.set()
    beside.until(200)


def test_what_is_not_there_is_said_with_what_is(beside: Beside) -> None:
    status, body = beside.ask("/ready")
    assert (status, json.loads(body)["paths"]) == (404, ["/healthz", "/readyz", "/metrics"])


def test_an_address_that_is_taken_is_said(beside: Beside) -> None:
    with pytest.raises(ConfigError, match=f"port {beside.port}"):
        expose(CollectorRegistry(), dict, "127.0.0.1", beside.port)


SERVES_AND_FORKS = """
import os, sys, time
from prometheus_client import CollectorRegistry
from runfold.telemetry.serving import expose
port = expose(CollectorRegistry(), dict, "127.0.0.1", 0)
if os.fork() == 0:  # as multiprocessing does in a tool
    print(port, os.getpid(), flush=True)
time.sleep(60)
"""


def test_what_a_tool_has_forked_does_not_keep_the_port_of_a_worker_that_died() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVES_AND_FORKS], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        port, child = map(int, worker.stdout.readline().split())
        worker.kill()
        worker.wait()
        try:
            assert expose(CollectorRegistry(), dict, "127.0.0.1", port) == port
        finally:
            os.kill(child, signal.SIGKILL)


# ---- what the loop sees


class Stage:
    """One worker; the clock and the log's end are the test's, everything else is real."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(2)
        self.broker.group.join("group")
        self.ends: dict[int, int] = {}
        self.log = MemoryLog(self.broker)
        self.now = time.monotonic()
        self.read_ago = self.heard_ago = 0.0
        seen: dict[str, Any] = {
            "ends": lambda: self.ends,
            "read_at": lambda: self.now - self.read_ago,
            "heard_at": lambda: self.now - self.heard_ago,
        }
        self.engine = Engine(self.log, ScriptedModel(turns(text("done"))), Ledger(), **seen)
        self.vitals = Vitals(self.engine.worker, lambda: self.now)

    def grant(self, *partitions: int, leaving: tuple[int, ...] = ()) -> None:
        proof = self.broker.group.proof("group")
        self.engine.worker.granted(Grant(frozenset(partitions), frozenset(leaving), proof, self.now))

    async def own(self, *partitions: int) -> None:
        self.grant(*partitions)
        await self.engine.notes.until(lambda: {number for number, _ in self.engine.notes.epochs} >= set(partitions))

    def seen_after(self, seconds: float) -> dict[str, str]:
        """The troubles, after a look at a time when the keeper has just spoken."""
        self.now += seconds
        self.grant(*self.engine.worker.grant.partitions, leaving=tuple(self.engine.worker.grant.leaving))
        self.vitals.look()
        return self.vitals.troubles()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.engine.close()
    assert made.engine.failures == []


async def test_before_the_keeper_spoke_nothing_is_ready(stage: Stage) -> None:
    assert stage.vitals.troubles() == {"keeper": "silent"}


async def test_one_that_is_given_nothing_stands_by(stage: Stage) -> None:
    assert stage.seen_after(0) == {}


async def test_one_that_is_no_member_is_not_ready(stage: Stage) -> None:
    stage.engine.worker.granted(Grant(at=stage.now))
    stage.vitals.look()
    assert stage.vitals.troubles() == {"group": "not joined"}


async def test_a_partition_is_ready_when_its_marker_is_read_back(stage: Stage) -> None:
    stage.broker.stop()
    stage.grant(0)
    assert stage.seen_after(0) == {"partition 0": "taking_over"}
    assert stage.vitals.blocked(Blocked.TAKING_OVER) == 1
    stage.broker.start()
    await stage.own(0)
    assert stage.seen_after(0) == {}


async def test_a_lane_that_is_being_mended_is_not_ready(stage: Stage) -> None:
    await stage.own(0)
    stage.engine.worker.partitions[0].interrupted(LogUnavailable("the test says so"))
    assert stage.seen_after(0) == {"partition 0": "resetting"}


async def test_a_silent_keeper_is_said(stage: Stage) -> None:
    await stage.own(0)
    stage.now += stage.engine.resources.silence_seconds + 0.1
    stage.vitals.look()
    assert stage.vitals.troubles() == {"keeper": "silent", "partition 0": "keeper_silent"}


async def test_of_a_blocked_loop_nobody_says_that_its_keeper_is_silent(stage: Stage) -> None:
    """It is the loop that hears the keeper: an operator who reads both would look at the wrong process."""
    await stage.own(0)
    stage.now += stage.engine.resources.silence_seconds + 0.1
    stage.vitals.look()
    stage.now += LOOP_SECONDS + 0.1
    assert stage.vitals.troubles() == {"loop": "blocked for 2.1 s"}


async def test_one_that_gives_everything_back_takes_no_more(stage: Stage) -> None:
    await stage.own(0)
    stage.grant(leaving=(0,))
    assert stage.seen_after(0) == {"group": "being left"}


async def test_a_log_that_grows_while_nothing_is_applied_is_not_ready(stage: Stage) -> None:
    """A task that reads may be alive and well: what counts is the offset."""
    await stage.own(0)
    applied = stage.engine.worker.partitions[0].shard.next_offset
    stage.ends = {0: applied + 1}  # the marker of the last commit
    assert stage.seen_after(0) == {}
    assert stage.seen_after(2 * STALL_SECONDS) == {}, "nothing is to be applied"
    stage.ends = {0: applied + 2}
    assert stage.seen_after(0) == {}
    assert stage.seen_after(STALL_SECONDS - 0.1) == {}
    assert stage.seen_after(0.2) == {"partition 0": "standstill"}
    stage.engine.worker.partitions[0].shard.next_offset += 1
    assert stage.seen_after(0.1) == {}


async def test_a_reader_that_is_blocked_is_said(stage: Stage) -> None:
    """Where the log ends only it could tell."""
    await stage.own(0)
    stage.read_ago = READER_SECONDS - 0.1
    assert stage.seen_after(0) == {}
    stage.read_ago = READER_SECONDS + 0.1
    assert stage.seen_after(0) == {"reader": "blocked for 5.1 s"}


async def test_a_silent_broker_is_said_although_nothing_is_owing(stage: Stage) -> None:
    """Of a log that says nothing the end does not grow: it looks as if there were nothing to do."""
    await stage.own(0, 1)
    stage.heard_ago = BROKER_SECONDS - 0.1
    assert stage.seen_after(0) == {}
    stage.heard_ago = BROKER_SECONDS + 0.1
    silent = {"broker": "silent for 5.1 s", "partition 0": "broker_silent", "partition 1": "broker_silent"}
    assert stage.seen_after(0) == silent
    assert stage.vitals.blocked(Blocked.BROKER_SILENT) == 2
    stage.heard_ago = 0.0
    assert stage.seen_after(0) == {}


async def test_one_that_stands_by_is_not_ready_while_the_broker_is_silent(stage: Stage) -> None:
    stage.heard_ago = BROKER_SECONDS + 0.1
    assert stage.seen_after(0) == {"broker": "silent for 5.1 s"}


async def test_what_is_submitted_and_not_read_back_is_not_ready(stage: Stage) -> None:
    """Also when the broker is away, and the log with it."""
    await stage.own(0)
    assert stage.seen_after(0) == {}
    lane = stage.engine.worker.partitions[0].lane
    stage.broker.stop()
    lane._unread.append(lane._mark())
    assert stage.seen_after(SETTLE_SECONDS) == {}
    assert stage.seen_after(STALL_SECONDS + 0.1) == {"partition 0": "standstill"}


async def test_poison_that_waits_for_its_topic_is_counted_and_harms_no_one(stage: Stage) -> None:
    await stage.own(0)
    taken = asyncio.Event()
    real = stage.log.dead_letter

    async def slow(unreadable: Unreadable) -> None:
        await taken.wait()
        await real(unreadable)

    stage.log.dead_letter = slow  # type: ignore[method-assign]
    stage.broker.partitions[0].put(b"no run id", b"no Avro", None, 0)
    await stage.engine.notes.until(lambda: len(stage.engine.notes.unreadable_records) == 1)
    assert stage.seen_after(0) == {}
    assert stage.vitals.blocked(Blocked.DEAD_LETTERS) == 1
    assert stage.engine.notes.buried_records == []
    taken.set()
    await stage.engine.notes.until(lambda: len(stage.engine.notes.buried_records) == 1)
    assert stage.seen_after(0) == {}
    assert stage.vitals.blocked(Blocked.DEAD_LETTERS) == 0


def test_reasons_are_those_of_the_documentation() -> None:
    """Each is a value of a label: they are for ever."""
    assert {*Blocked} == {
        "loop", "keeper_silent", "broker_silent", "taking_over", "resetting", "standstill", "dead_letters", "parked",
    }  # fmt: skip
    assert {*Blocked} > vitals.STEPS_GO_ON


# ---- standing still


def test_a_standstill_begins_when_there_is_something_to_apply_and_ends_with_the_next_record() -> None:
    still = Standstill()
    looks: list[tuple[float, int, int, bool, float | None]] = [
        (0.0, 10, 8, False, None),  # where the log ends is known a little later than what was applied
        (0.5, 10, 11, False, None),
        (90.0, 10, 11, False, None),
        (91.0, 10, 14, False, 91.0),
        (92.0, 10, 14, False, 91.0),
        (93.0, 12, 14, False, None),
        (93.5, 12, 14, False, None),
        (99.0, 12, 14, True, 99.0),
        (99.9, 12, 14, False, None),  # withdrawn
        (100.0, 20, 14, False, None),
        (130.0, 20, 21, False, None),  # on a starved machine the marker is heard of late
        (131.0, 20, 22, False, 131.0),
    ]
    for now, applied, end, owing, since in looks:
        still.look(applied, end, owing, now)
        assert still.since == since, now
