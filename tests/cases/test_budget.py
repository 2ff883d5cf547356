"""B: a run ends when it is told to and costs what it may (cases B01, B04, B06, B08)."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest

from runfold.agents import Agent
from runfold.core.events import (
    ModelStepCompleted,
    ModelStepStarted,
    Reason,
    RunFinished,
    RunStarted,
    Status,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.core.run import Run
from runfold.model import Prices
from runfold.testing import Script, given
from runfold.tools import ToolContext, tool
from tests.cases.engine_scene import PATIENCE, Scene, recording, stage
from tests.cases.harness_processes import slowness

# ---- B01

SERIAL = Script().then_tools([("a", "act", {}), ("b", "act", {}), ("c", "act", {})]).then_text("done")


async def cancelled_soon(scene: Scene, id_: str) -> Run:
    """Cancel the run now; B01.1 holds of how it ends."""
    began = time.monotonic()
    await scene.cancel(id_)
    run = await scene.settled(id_)
    assert time.monotonic() - began < 3 * slowness(), "B01.1"
    assert (run.status, run.reason) == (Status.CANCELLED, Reason.CANCEL), "B01.1"
    return run


async def nothing_follows(scene: Scene, id_: str) -> None:
    """B01.3: another run passes along the partition, and nothing of the cancelled one comes any more."""
    assert (await scene.play("barrier")).status is Status.SUCCEEDED
    assert len(scene.log(id_, RunFinished)) == 1, "B01.1"
    scene.check()  # O1: no event of the run after its RunFinished


async def test_b01_v1_a_cancel_stops_a_tool_and_those_that_wait_for_it() -> None:
    async with stage({"go": SERIAL, "barrier": Script().then_text("done")}) as scene:

        async def for_ever(context: ToolContext) -> None:
            await asyncio.Event().wait()

        scene.serve(recording(scene.ledger, "act", for_ever, parallel=False))
        scene.start()
        id_ = await scene.submit()
        await scene.logged(ToolStepStarted, id_, tool_use_id="a")
        await cancelled_soon(scene, id_)
        await nothing_follows(scene, id_)
        assert [execution.key for execution in scene.ledger] in ([f"{id_}/1/a"], []), "B01.2: neither b nor c"
        assert scene.api.hits("go") == 1, "B01.2"
        assert [event.tool_use_id for event in scene.log(id_, ToolStepStarted)] == ["a"], "B01.4"
        assert not scene.log(id_, ToolStepFinished), "B01.4: never as DONE"


async def test_b01_v2_a_cancel_closes_the_connection_of_a_model_call() -> None:
    async with stage({"go": Script().then_text("too late").held("model"), "barrier": Script().then_text("done")}) as scene:
        scene.start()
        id_ = await scene.submit()
        await scene.api.until_held("model")
        await cancelled_soon(scene, id_)
        (hit,) = scene.api.requests
        await scene.api.until(lambda: hit.aborted)  # B01.2: the connection is closed
        scene.api.release("model")
        await nothing_follows(scene, id_)
        assert scene.api.hits("go") == 1, "B01.2"
        assert not scene.log(id_, ModelStepCompleted), "B01.3, B01.4"


async def test_b01_v3_a_tool_that_ignores_it_is_left_behind_and_its_late_result_is_dropped() -> None:
    async with stage({"go": SERIAL, "barrier": Script().then_text("done")}) as scene:
        entered, released, returned = threading.Event(), threading.Event(), threading.Event()

        @tool(name="act", idempotency="optional", parallel=False)
        def act(context: ToolContext) -> str:
            scene.ledger.enter(context)
            entered.set()
            with suppress(BaseException):  # it takes no hint
                released.wait(60)
            returned.set()
            return "too late"

        scene.serve(act)
        scene.start()
        id_ = await scene.submit()
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        await cancelled_soon(scene, id_)
        released.set()
        assert await asyncio.to_thread(returned.wait, PATIENCE)
        await nothing_follows(scene, id_)
        assert scene.ledger.count("/a") == len(scene.ledger) == 1, "B01.2"
        assert not scene.log(id_, ToolStepFinished), "B01.3, B01.4"


async def test_b01_v3_an_async_tool_that_swallows_its_cancellation() -> None:
    async with stage({"go": SERIAL, "barrier": Script().then_text("done")}) as scene:
        entered, released, returned = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def cling(context: ToolContext) -> str:
            entered.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
            returned.set()
            return "too late"

        scene.serve(recording(scene.ledger, "act", cling, parallel=False))
        scene.start()
        id_ = await scene.submit()
        await entered.wait()
        try:
            await cancelled_soon(scene, id_)
        finally:
            released.set()
        await returned.wait()
        await nothing_follows(scene, id_)
        assert len(scene.ledger) == 1, "B01.2"


# ---- B04: input, cache write, cache read and output tokens count

SPENDING = Script().then_tool_use("a", "act", {}, 300, 100).then_tool_use("b", "act", {}, 300, 100)
SPENDING = SPENDING.then_tool_use("c", "act", {}, 300, 100).then_tool_use("d", "act", {}, 300, 100)


def asked_within(scene: Scene, budget: int, per_turn: int) -> list[int]:
    """max_tokens of each request, none above what was left before it (B04.2)."""
    asked = [int(hit.body["max_tokens"]) for hit in scene.api.requests]
    assert all(0 < tokens <= budget - per_turn * n for n, tokens in enumerate(asked)), "B04.2"
    return asked


async def test_b04_v1_the_token_budget_is_a_ceiling() -> None:
    async with stage(SPENDING) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play(token_budget=1000)
        assert scene.api.hits() == 2, "B04.1: 200 are left, and the prompt that comes again has 300"
        assert asked_within(scene, 1000, 400) == [1000, 300], "B04.2: 300 of what is left are the prompt's"
        assert (run.status, run.reason) == (Status.SUSPENDED, Reason.BUDGET), "B04.1"
        assert "800 of 1000" in run.detail, "B04.1: what was spent is shown"
        assert run.spent <= 1000, "B04.2"
        assert scene.ledger.count("/c") == 0


@pytest.mark.parametrize("turn", [1, 2])
async def test_b04_v2_a_restart_resets_no_budget(turn: int) -> None:
    async with stage(SPENDING) as scene:
        scene.serve(recording(scene.ledger, "act"))

        def answered(event: object) -> bool:
            return isinstance(event, ModelStepCompleted) and event.seq == 2 * turn - 1

        killed = scene.kill_at(answered, committed=True)
        scene.start()
        id_ = await scene.submit(token_budget=1000)
        await killed
        scene.start()
        run = await scene.settled(id_)
        assert (scene.api.hits(), run.spent) == (2, 800), "B04.3"
        assert asked_within(scene, 1000, 400) == [1000, 300], "B04.2"


async def test_b04_v2_a_call_that_dies_with_its_worker_counts_as_it_was_reserved() -> None:
    """It may have been paid for: the next attempt gets what is left then, and the totals hold no guess."""
    held = Script().then_text("lost", 300, 100).held("model")
    async with stage(held) as scene:
        scene.serve(max_tokens=700)
        scene.start()
        id_ = await scene.submit(token_budget=1000)
        await scene.api.until_held("model")
        await scene.restart()
        await scene.api.until(lambda: scene.api.hits() == 2)
        scene.api.release("model")
        run = await scene.settled(id_)
        assert [hit.body["max_tokens"] for hit in scene.api.requests] == [700, 300], "B04.2"
        assert (run.status, run.spent, run.unsettled) == (Status.SUCCEEDED, 400, 700)


async def test_b04_v3_nothing_left_is_not_unlimited() -> None:
    async with stage(SPENDING) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play(token_budget=800)
        assert (scene.api.hits(), run.reason) == (2, Reason.BUDGET), "B04.4"


async def test_b04_v4_an_answer_that_takes_it_all_runs_no_tool() -> None:
    async with stage(Script().then_tool_use("a", "act", {}, 4000, 1000).then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play(token_budget=1000)
        assert (scene.api.hits(), run.reason) == (1, Reason.BUDGET), "B04.5"
        assert not scene.ledger, "B04.5"
        assert not scene.log(run.id, ToolStepStarted), "B04.5"


async def test_b04_cached_tokens_count() -> None:
    usage = {"input_tokens": 0, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 500, "output_tokens": 100}
    call = [{"type": "tool_use", "id": "a", "name": "act", "input": {}}]
    async with stage(Script().then_message(call, "tool_use", usage).then_text("done")) as scene:
        run = await scene.play(token_budget=1000)
        assert (run.reason, run.spent, scene.api.hits()) == (Reason.BUDGET, 1000, 1)


# ---- B06: claude-sonnet-4-6 has the case's prices

U1 = {"input_tokens": 3, "cache_creation_input_tokens": 12304, "cache_read_input_tokens": 0, "output_tokens": 550}
U2 = {"input_tokens": 100, "cache_creation_input_tokens": 700, "cache_read_input_tokens": 200, "output_tokens": 0}
U3 = {"input_tokens": 100, "cache_creation_input_tokens": None, "output_tokens": 10}
U4 = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 2000,
    "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 1000},
    "output_tokens": 0,
}


@pytest.mark.parametrize(
    ("usage", "cost", "tokens", "assertion"),
    [
        (U1, "0.054399", 12857, "B06.1"),
        (U2, "0.002985", 1000, "B06.1"),
        (U3, "0.000450", 110, "B06.2"),
        (U4, "0.009750", 2000, "B06.1"),
    ],
    ids=["U1", "U2", "U3", "U4"],
)
async def test_b06_cached_tokens_have_their_own_price(usage: dict[str, Any], cost: str, tokens: int, assertion: str) -> None:
    script = Script().then_message([{"type": "text", "text": "done"}], "end_turn", usage)
    async with stage(script) as scene:
        run = await scene.play()
        assert (run.cost, run.usage.total) == (Decimal(cost), tokens), assertion
        (process,) = scene.processes
        assert process.sample("agent_cost_usd_total", model="claude-sonnet-4-6") == float(cost), assertion


def test_b06_3_a_thousand_answers_cost_exactly_a_thousand_times_as_much() -> None:
    usage = Usage(input_tokens=3, cache_write_5m_tokens=12304, output_tokens=550)
    price = Prices.load().cost("claude-sonnet-4-6", usage, on=date(2026, 11, 30))

    def answer(history: Any, n: int) -> Any:
        return history.answers({"type": "text", "text": f"{n}"}, stop_reason="pause_turn", usage=usage, cost=price)

    run = reduce(answer, range(1000), given(max_steps=5000).started()).run
    assert run.cost == Decimal("54.399"), "B06.3"


# ---- B08

UNPRICED = Agent("unpriced", "claude-unknown-9")
ANOTHER_MODEL = Script().then_message(
    [{"type": "tool_use", "id": "a", "name": "act", "input": {}}], "tool_use", model="claude-unknown-9"
)


async def test_b08_v1_a_ceiling_on_a_model_without_a_price_is_refused_before_the_first_request() -> None:
    async with stage(Script().then_text("done")) as scene:
        scene.serve(agents=[UNPRICED])
        run = await scene.play(agent="unpriced", cost_ceiling=Decimal("0.50"))
        assert (run.status, scene.api.hits()) == (Status.FAILED, 0), "B08.1"
        assert "claude-unknown-9" in run.detail, "B08.1"
        assert not scene.log(run.id, RunStarted)


async def test_b08_v2_without_a_ceiling_it_runs_and_its_cost_is_unknown() -> None:
    async with stage(Script().then_text("done")) as scene:
        scene.serve(agents=[UNPRICED])
        run = await scene.play(agent="unpriced")
        (process,) = scene.processes
        assert (run.status, run.cost) == (Status.SUCCEEDED, None), "B08.2"
        assert [event.cost for event in scene.log(run.id, RunFinished)] == [None], "B08.2"
        assert process.sample("agent_unpriced_answers_total", model="claude-unknown-9") == 1, "B08.2"
        assert process.registry.get_sample_value("agent_cost_usd_total", {"model": "claude-unknown-9"}) is None, "B08.2"


async def test_b08_v3_an_answer_of_another_model_is_priced_as_that_one() -> None:
    async with stage(ANOTHER_MODEL.then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert (run.status, run.cost) == (Status.SUCCEEDED, None), "B08.3: no price, no sum"


async def test_b08_v3_and_a_ceiling_fails_closed() -> None:
    async with stage(ANOTHER_MODEL.then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play(cost_ceiling=Decimal("0.50"))
        assert (run.status, run.reason) == (Status.SUSPENDED, Reason.BUDGET), "B08.3"
        assert scene.api.hits() == 1, "B08.3: no further request"
        assert len(scene.log(run.id, ModelStepStarted)) == 1, "B08.3"
        assert not scene.ledger, "B08.3"
