"""The seeded simulator: no seed finds anything, a seed is a whole history, and what seeds have found stays mended."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest

from runfold.audit import Violation, verify
from runfold.core import shard
from runfold.core.decisions import Finish, WaitUntil
from runfold.core.errors import LogUnavailable, ModelFailure
from runfold.core.events import (
    CommandRejected,
    Delivery,
    LeaseAcquired,
    Limits,
    ModelStepFailed,
    OwnerEvent,
    Reason,
    Record,
    Rejection,
    RunRequested,
    RunResumed,
    RunResumeRequested,
    Status,
    Unreadable,
)
from runfold.core.shard import Ignored
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog, MemoryMembership
from runfold.log.wire import read
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest, ToolCallRequest, ToolResult
from runfold.simulation import explore, simulate
from runfold.simulation.loop import VirtualLoop
from runfold.testing import given
from runfold.worker import carrier
from tests.contract.log_suite import run_on
from tests.engine import Engine, Ledger, NoRetry, ScriptedTools, done, text, tool_use, turns
from tests.property.mutants import MUTANTS, Break, plan_for

SEEDS = 2000
PAST = [int(line) for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines() if line[:1].isdigit()]


def test_no_seed_finds_anything() -> None:
    outcomes = list(explore(range(SEEDS)))
    assert [(outcome.seed, outcome.complaints) for outcome in outcomes if outcome.complaints] == []
    assert len(outcomes) == SEEDS


def test_seeds_that_found_something_find_nothing_any_more() -> None:
    assert [(seed, complaints) for seed in PAST if (complaints := simulate(seed).complaints)] == []


def test_a_seed_is_the_same_history_in_every_process() -> None:
    script = "from runfold.simulation import simulate; print(*(simulate(seed).digest for seed in range(6)))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(digests) == 1
    assert digests.pop().split() == [simulate(seed).digest for seed in range(6)]


def test_who_watches_changes_nothing() -> None:
    lines: list[str] = []
    assert simulate(3, lines.append) == simulate(3)
    assert any("owns partition" in line for line in lines)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    played = (simulate(seed, plan=plan_for(seed, MUTANTS[mutant])) for seed in range(100))
    found = next((outcome for outcome in played if outcome.complaints), None)
    assert found is not None, f"{mutant.__doc__} Nobody noticed."
    print(f"seed {found.seed}: {found.complaints[0]}")


# ---- what seeds have found


def owning(broker: MemoryBroker) -> bytes:
    """The proof of a member that owns all partitions."""
    seat = MemoryMembership(broker.group)
    seat.join(lambda partitions: None)
    seat.poll(0)
    return seat.proof


def whole(broker: MemoryBroker) -> list[Delivery]:
    return [read(stored.raw, broker.codec, len(broker.partitions)) for part in broker.partitions for stored in part.visible(0)]


async def test_a_marker_that_comes_back_after_its_append_failed_is_no_lease() -> None:
    """Seeds 21, 51: the worker acted on it while it was taking over again, without a clock, and under an epoch that ended."""
    broker = MemoryBroker(1)
    lost: list[OwnerEvent] = []

    async def lose_the_first_marker_s_acknowledgement(partition: int, events: Sequence[OwnerEvent]) -> None:
        if not lost and isinstance(events[0], LeaseAcquired):
            lost.extend(events)
            raise LogUnavailable("the test says so")

    broker.after_commit = lose_the_first_marker_s_acknowledgement
    run_id = run_on(0)
    await MemoryCommands(broker).send(RunRequested(run_id=run_id, agent="default", input="go"))
    engine = Engine(MemoryLog(broker), ScriptedModel(lambda request: text("done")), Ledger())
    engine.grant([0], owning(broker))
    await engine.notes.until(lambda: bool(engine.failures) or run_id in engine.notes.ended)
    await engine.close()
    assert engine.failures == []
    assert len(engine.notes.resets) == 1
    assert len(engine.notes.epochs) == 1
    assert verify(whole(broker)) == []


async def test_a_record_that_waits_for_the_dead_letter_topic_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 9551: with no open run to hold it, the next fold began after the record, and nobody buried it."""
    monkeypatch.setattr(shard, "OVERLAP", 3)
    broker, ledger = MemoryBroker(1), Ledger()
    proof = owning(broker)
    broker.put(0, None, b"rubbish")
    log = MemoryLog(broker)

    async def away(unreadable: Unreadable) -> None:
        raise LogUnavailable("the test says so")

    monkeypatch.setattr(log, "dead_letter", away)
    engine = Engine(log, ScriptedModel(lambda request: text("done")), ledger)
    engine.grant([0], proof)
    for _ in range(5):
        await MemoryCommands(broker).send(RunRequested(run_id=run_on(0), agent="default", input="go"))
    await engine.notes.until(lambda: len(engine.notes.ended) == 5)
    await engine.close()
    next_engine = Engine(MemoryLog(broker), ScriptedModel(lambda request: text("done")), ledger)
    next_engine.grant([0], proof)
    await next_engine.notes.until(lambda: bool(next_engine.notes.epochs))
    await next_engine.close()
    assert [letter.offset for letter in broker.dead_letters] == [0]


async def test_an_owner_that_comes_back_does_not_set_the_position_back() -> None:
    """Seed 33300: it took the partition over again before it had read what another owner did meanwhile."""
    broker, ledger, model = MemoryBroker(1), Ledger(), ScriptedModel(lambda request: text("done"))
    proof, run_id = owning(broker), run_on(0)
    log = MemoryLog(broker)
    engine = Engine(log, model, ledger)
    engine.grant([0], proof)
    await engine.notes.until(lambda: bool(engine.notes.epochs))
    lane = engine.worker.partitions[0].lane
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.worker.partitions[0].shard, "apply", lambda record: Ignored.ORPHAN)  # it reads, and gets nowhere
        other = Engine(MemoryLog(broker), model, ledger)
        other.grant([0], proof)
        for _ in range(5):
            await MemoryCommands(broker).send(RunRequested(run_id=run_on(0), agent="default", input="go"))
        await other.notes.until(lambda: len(other.notes.ended) == 5 and broker.partitions[0].position.next > 10)
        await other.close()
        reached = broker.partitions[0].position
        lane.submit(CommandRejected(run_id=run_id, epoch=0, command_id="c", reason=Rejection.RUN_FINISHED))
        await engine.notes.until(lambda: bool(engine.notes.resets))
        leases = len(engine.notes.epochs) + len(other.notes.epochs)
        async with asyncio.timeout(20):
            while sum(isinstance(one, Record) and isinstance(one.event, LeaseAcquired) for one in whole(broker)) == leases:
                engine.grant([0], proof)
                await asyncio.sleep(0.01)
    assert broker.partitions[0].position.next >= reached.next
    await engine.close()


def test_a_timer_that_rings_too_early_is_set_again() -> None:
    """Seed 69: the broker's clock went back while a run waited for its next attempt, and the run waited for ever."""
    loop = VirtualLoop(Random(0))  # type: ignore[abstract]
    back = 0

    def clock() -> int:
        return 1_750_000_000_000 + int(loop.time() * 1000) - back

    waiting, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"

    def reply(request: ModelRequest) -> ModelAnswer:
        if request.run_id == waiting and request.attempt == 1:
            raise ModelFailure(Reason.OVERLOADED, "the test says so", retryable=True)
        return text("done")

    async def play() -> None:
        nonlocal back
        broker = MemoryBroker(1, clock)
        commands = MemoryCommands(broker)
        engine = Engine(MemoryLog(broker), ScriptedModel(reply), Ledger(), retries=NoRetry([5.0]))
        engine.grant([0], owning(broker))
        await commands.send(RunRequested(run_id=waiting, agent="default", input="go"))
        await engine.notes.until(lambda: any(isinstance(each.event, ModelStepFailed) for each in engine.notes.applied_records))
        back = 60_000
        await commands.send(RunRequested(run_id=other, agent="default", input="go"))
        await engine.notes.until(partial(_have_ended, engine, waiting, other), seconds=60)
        await engine.close()

    loop.run(play())


def test_an_end_counts_no_step_that_is_withdrawn() -> None:
    """Seed 44: drained between the end of a run and its commit, a worker took back a start that the end's totals counted."""
    loop = VirtualLoop(Random(0))  # type: ignore[abstract]

    async def play() -> None:
        broker = MemoryBroker(1, lambda: 1_750_000_000_000 + int(loop.time() * 1000))
        proof, commands = owning(broker), MemoryCommands(broker)

        async def slow(partition: int, events: Sequence[OwnerEvent]) -> None:
            await asyncio.sleep(2 if 0.8 < loop.time() < 1 else 0)

        async def body(request: ToolCallRequest) -> ToolResult:
            await asyncio.sleep(0.9)
            return done("late")

        broker.before_commit = slow
        ledger = Ledger()
        model = ScriptedModel(turns(tool_use(("a", "tool", {})), text("done")))
        engine = Engine(MemoryLog(broker), model, ledger, tools=ScriptedTools(ledger, body))
        engine.grant([0], proof)
        await commands.send(RunRequested(run_id=run_on(0), agent="default", input="go", limits=Limits(timeout_ms=1000)))
        await asyncio.sleep(0.85)
        await commands.send(RunRequested(run_id=run_on(0), agent="default", input="go"))  # its start is long under way
        await asyncio.sleep(0.5)  # the tool has ended, the next step is planned, the deadline has passed
        engine.grant([], proof, leaving=[0])
        await asyncio.sleep(10)
        assert engine.worker.held == frozenset()
        assert verify(whole(broker)) == []

    loop.run(play())


def test_a_snapshot_that_a_command_overtakes_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 333: the worker took it for a sign that all its plans were wrong, and wrote results a second time."""
    for name, value in {"BEHIND": 1, "FACTOR": 0, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(carrier, name, value)
    chance = Random(0)
    loop = VirtualLoop(chance)  # type: ignore[abstract]

    async def play() -> None:
        broker = MemoryBroker(1, lambda: 1_750_000_000_000 + int(loop.time() * 1000))
        broker.latency = 0.01
        commands, run_id, ledger = MemoryCommands(broker), run_on(0), Ledger()
        said = turns(*[tool_use((f"call_{n}", "tool", {})) for n in range(50)], text("done"))

        async def reply(request: ModelRequest) -> ModelAnswer:
            await asyncio.sleep(0.025)
            return said(request)

        engine = Engine(MemoryLog(broker), ScriptedModel(reply), ledger)
        engine.grant([0], owning(broker))
        await commands.send(RunRequested(run_id=run_id, agent="default", input="go"))
        while run_id not in engine.notes.ended and loop.time() < 30:
            command = RunResumeRequested(run_id=run_id, command_id=f"{loop.time()}", requested_by="test")
            await commands.send(command)
            await asyncio.sleep(chance.uniform(0, 0.1))
        await engine.close()
        assert len(ledger.model_calls) == 51
        assert verify(whole(broker)) == []

    loop.run(play())


def spoiled_while(when: str) -> list[Violation]:
    """What the log breaks when a record that nobody can read, in the owner's name, comes up in a run while ``when``."""
    loop = VirtualLoop(Random(0))  # type: ignore[abstract]

    async def play() -> list[Violation]:
        broker = MemoryBroker(1, lambda: 1_750_000_000_000 + int(loop.time() * 1000))
        broker.latency = 0.01
        commands, run_id, ledger = MemoryCommands(broker), run_on(0), Ledger()
        said = turns(tool_use(("a", "tool", {})), text("done"))

        def spoil() -> None:
            broker.put(0, run_id.encode(), None, lane=b"anybody:1")

        def reply(request: ModelRequest) -> ModelAnswer:
            if when == "its end is under way" and request.seq == 3:
                loop.call_later(0.005, spoil)  # before the end is written, and read before it
            return said(request)

        async def body(request: ToolCallRequest) -> ToolResult:
            if when == "a tool runs" and request.attempt == 1:
                loop.call_later(0.001, spoil)
                await asyncio.sleep(10)
            return done("late")

        engine = Engine(MemoryLog(broker), ScriptedModel(reply), ledger, tools=ScriptedTools(ledger, body))
        engine.grant([0], owning(broker))
        await commands.send(RunRequested(run_id=run_id, agent="default", input="go"))
        await asyncio.sleep(1)
        await commands.send(RunResumeRequested(run_id=run_id, command_id="1", requested_by="test"))
        await engine.notes.until(lambda: run_id in engine.notes.ended)
        await engine.close()
        return verify(delivery for delivery in whole(broker) if isinstance(delivery, Record))

    return loop.run(play()) or []


def test_a_run_whose_end_is_under_way_is_not_suspended_for_a_record_that_cannot_be_read() -> None:
    """Seed 1239: RunSuspended was written behind RunFinished."""
    assert spoiled_while("its end is under way") == []


def test_a_final_answer_outlives_a_record_that_cannot_be_read() -> None:
    """Seed 3438: once resumed, the run asked the model again, although the answer to be followed was in the log."""
    answered = given().started().answers({"type": "text", "text": "done"})
    stopped = answered.suspended(Reason.UNREADABLE_RECORD)
    command = RunResumeRequested(run_id=stopped.run.id, command_id="1", requested_by="test")
    resumed = stopped.when(command).when(
        RunResumed(run_id=stopped.run.id, epoch=0, command_id="1", token_budget=None, cost_ceiling=None, max_steps=None)
    )
    assert stopped.decisions() == [WaitUntil(stopped.run.deadline)]
    assert resumed.decisions() == answered.decisions() == [Finish(Status.SUCCEEDED, Reason.FINAL_ANSWER)]


def test_what_an_unreadable_record_stopped_may_begin_again() -> None:
    """Seed 1208: verify-log took it for a step that begins while it is under way."""
    assert spoiled_while("a tool runs") == []


def _have_ended(engine: Engine, *run_ids: str) -> bool:
    return all(run_id in engine.notes.ended for run_id in run_ids)
