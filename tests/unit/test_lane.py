"""The append path of a partition: group commit, echo, the position that goes with it (`runfold.worker.lane`)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runfold.core.events import (
    AgentDefinition,
    CommandRejected,
    LeaseAcquired,
    ModelStepCompleted,
    OwnerEvent,
    Reason,
    Rejection,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
    SideEffect,
    Status,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.log.codec import Codec
from runfold.worker import lane as lane_module
from runfold.worker.size import weight
from runfold.worker.sound import LONGEST
from tests.unit.lane_world import PATIENCE, RUN, World, event, large, opened, owning, some_ticks


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as world:
        yield world


# ---- transactions


async def test_the_marker_comes_first_and_alone(world: World) -> None:
    world.lane.submit(event("early"))
    world.start()
    await world.until(lambda: len(world.transactions) == 2)
    assert world.names() == [["marker"], ["early"]]
    assert world.transactions[0] == [LeaseAcquired(partition=0, worker="w", build="test")]
    assert world.lane.marker is world.transactions[0][0]


async def test_what_is_ready_goes_into_one_transaction(world: World) -> None:
    await owning(world)
    for name in "abc":
        world.lane.submit(event(name))
    await world.until(lambda: len(world.transactions) == 2)
    assert world.names()[1] == ["a", "b", "c"]


async def test_the_next_transaction_waits_for_the_echo_not_for_the_acknowledgement(world: World) -> None:
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    world.lane.submit(event("b"))
    world.lane.submit(event("c"))
    await some_ticks()
    assert world.names()[1:] == [["a"]], "acknowledged, not read back"
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names()[1:] == [["a"], ["b", "c"]]


async def test_a_transaction_stays_below_a_megabyte(world: World) -> None:
    await owning(world)
    for _ in range(5):
        world.lane.submit(large(250_000))
    await world.until(lambda: sum(map(len, world.transactions)) == 6)
    assert [len(events) for events in world.transactions[1:]] == [3, 2]


async def test_an_event_larger_than_that_goes_alone(world: World) -> None:
    await owning(world)
    for one in (event("a"), large(1_500_000), event("b")):
        world.lane.submit(one)
    await world.until(lambda: sum(map(len, world.transactions)) == 4)
    assert [len(events) for events in world.transactions[1:]] == [1, 1, 1]


async def test_what_is_in_no_transaction_yet_can_be_taken_back(world: World) -> None:
    await owning(world)
    world.listening.clear()
    world.lane.submit(event("a"))
    await world.until(lambda: len(world.transactions) == 2)
    for name in "bc":
        world.lane.submit(event(name))
    taken = world.lane.withdraw(lambda one: one == event("b") or one == event("a"))
    assert taken == [event("b")]
    assert not world.lane.idle
    world.listening.set()
    await world.until(lambda: len(world.transactions) == 3)
    assert world.names()[1:] == [["a"], ["c"]]
    await world.until(lambda: world.lane.idle)


def sized(size: int) -> list[OwnerEvent]:
    """Events with ``size`` characters wherever somebody outside decides how many there are."""
    text = "\u20ac" * size  # three bytes each
    owner: dict[str, Any] = {"run_id": RUN, "epoch": 0}
    step: dict[str, Any] = {**owner, "seq": 1, "attempt": 1}
    call: dict[str, Any] = {**step, "model_seq": 1, "tool_use_id": text}
    definition = AgentDefinition(
        name="a", model=text, max_tokens=1, system_json=text, tools_json=text, options_json=text, hash="0" * 64
    )
    return [
        RunStarted(**owner, definition=definition, deadline=0),
        ModelStepCompleted(
            **step,
            content_json=text,
            stop_reason="x" * LONGEST,
            stop_details_json=text,
            usage=Usage(),
            cost=None,
            model="x" * LONGEST,
            message_id="x" * LONGEST,
            request_id="x" * LONGEST,
            latency_ms=0,
        ),
        ToolStepStarted(
            **call,
            name=text,
            input_json=text,
            idempotency_key=f"{RUN}/1/{text}",
            side_effect=SideEffect.NONE,
            repeatable=True,
        ),
        ToolStepFinished(**call, status=ToolStatus.DONE, content_json=text, latency_ms=0),
        RunSuspended(**owner, reason=Reason.BUDGET, detail=text[:LONGEST], tool_use_id=text),
        RunFinished(
            **owner,
            status=Status.FAILED,
            reason=Reason.CONFIG,
            detail=text[:LONGEST],
            output=text,
            command_id=text[:LONGEST],
            steps=0,
            usage=Usage(),
            cost=None,
        ),
        CommandRejected(**owner, command_id=text, reason=Rejection.RUN_FINISHED),
        RunResumed(**owner, command_id=text, token_budget=None, cost_ceiling=None, max_steps=None),
    ]


@pytest.mark.parametrize("size", [0, 1_000, 50_000])
def test_an_event_never_weighs_less_than_its_bytes(size: int) -> None:
    for one in sized(size):
        assert len(Codec().encode(one)) <= weight(one), type(one).__name__


# ---- the position


async def test_a_position_that_moved_without_any_event_is_written_on_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.05)
    await owning(world)
    world.next = 77
    world.lane.moved()
    await world.until(lambda: world.names() == [["marker"], []])
    assert world.broker.partitions[0].position.next == 77


async def test_a_trickle_of_such_moves_does_not_put_it_off_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.1)
    await owning(world)
    async with asyncio.timeout(PATIENCE):
        while len(world.transactions) < 2:
            world.next += 1
            world.lane.moved()
            await asyncio.sleep(0.01)
    assert world.names() == [["marker"], []]


async def test_a_position_that_stands_still_is_not_written_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "IDLE_SECONDS", 0.02)
    await owning(world)
    await world.until(lambda: len(world.transactions) == 2)  # the marker itself moved it
    for _ in range(5):
        world.lane.moved()
        await asyncio.sleep(0.03)
    assert world.names() == [["marker"], []]
