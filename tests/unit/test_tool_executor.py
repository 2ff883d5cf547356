"""Calls as the worker makes them: unknown tools (T05), tools that changed under an open run (T08), and what a tool is told."""

import asyncio
import io
import logging
import time
from typing import Any

import ecs_logging
import pytest

from runfold.core.events import ToolStatus
from runfold.ports import ToolPolicy
from runfold.tools import ToolContext, ToolError, tool

from .tool_calls import call, executor, request, text


@tool(side_effect="read")
async def good(n: int = 0) -> str:
    return f"good {n}"


@tool(side_effect="external", idempotency="required", parallel=False)
def pay(amount: int, context: ToolContext) -> str:
    return f"{amount} {context}"


async def test_T05_1_unknown_tool_is_answered_with_the_list_of_those_that_exist() -> None:
    """T05.1"""
    runner = executor(good, pay)
    nope, fine = await asyncio.gather(runner.call(request("nope")), runner.call(request("good")))
    assert nope.status is ToolStatus.ERROR
    assert text(nope) == "There is no tool 'nope'. Available tools: good, pay"
    assert (fine.status, text(fine)) == (ToolStatus.DONE, "good 0")


@pytest.mark.parametrize("name", ["x" * 300, 'say "hi"', "two\nlines", "", "{name}", "\ud800", "__class__", "Good"])
async def test_T05_2_strange_names_are_answered_in_bounded_text(name: str) -> None:
    """T05.2 V3"""
    runner = executor(good)
    assert runner.policy(name) == ToolPolicy()
    result = await runner.call(request(name, "not even JSON"))
    assert result.status is ToolStatus.ERROR
    assert "There is no tool" in text(result)
    assert "\n" not in text(result)
    assert len(text(result)) < 200


def test_policy_is_the_tools_own() -> None:
    assert executor(good, pay).policy("pay") == pay.policy


async def test_T08_1_call_of_a_tool_that_a_deploy_changed_or_removed_is_an_error() -> None:
    """T08.1 V1, V2: the run's frozen definition still shows the old tool."""

    @tool(side_effect="read")
    def search(query: str, tenant: str) -> str:
        return query + tenant

    committed = request("search", '{"query":"overdue"}')
    gone = await executor(good).call(committed)
    changed = await executor(good, search).call(committed)
    assert (gone.status, changed.status) == (ToolStatus.ERROR, ToolStatus.ERROR)
    assert "no tool 'search'" in text(gone)
    assert "'tenant': required, but missing" in text(changed)


async def test_tool_gets_the_context_of_its_call() -> None:
    seen: list[ToolContext] = []

    @tool(idempotency="required")
    async def note(context: ToolContext) -> None:
        seen.append(context)

    await call(note)
    assert seen == [ToolContext(run_id="run-1", tool_use_id="toolu_1", idempotency_key="run-1/1/toolu_1", attempt=1, seq=2)]


async def test_model_cannot_pass_the_context_itself() -> None:
    result = await call(pay, '{"amount":1,"context":{"run_id":"forged"}}')
    assert result.status is ToolStatus.ERROR
    assert "field 'context': there is no such field" in text(result)


async def test_C04_2_same_tool_use_id_in_two_turns_has_two_keys() -> None:
    """C04.2: and nothing here remembers ids, so both run."""
    keys: list[str] = []

    @tool(idempotency="required")
    async def count(context: ToolContext, n: int) -> int:
        keys.append(context.idempotency_key)
        return n

    runner = executor(count)
    first = await runner.call(request("count", '{"n":1}', tool_use_id="call_0", model_seq=1))
    second = await runner.call(request("count", '{"n":2}', tool_use_id="call_0", model_seq=3))
    assert [text(first), text(second)] == ["1", "2"]
    assert keys == ["run-1/1/call_0", "run-1/3/call_0"]


async def test_tool_that_cancels_its_own_task_does_not_cancel_the_worker() -> None:
    @tool(side_effect="none")
    async def quitting(at_once: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0 if at_once else 10)

    @tool(side_effect="none")
    async def parting() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    results = [await call(quitting, '{"at_once":true}'), await call(quitting, '{"at_once":false}'), await call(parting)]
    assert {result.status for result in results} == {ToolStatus.ERROR}


async def test_arguments_are_fresh_for_each_call() -> None:
    @tool(side_effect="none")
    async def grow(items: list[int]) -> int:
        items.append(1)
        return len(items)

    runner = executor(grow)
    assert [text(await runner.call(request("grow", '{"items":[]}'))) for _ in range(3)] == ["1", "1", "1"]


async def test_call_of_a_tool_that_does_nothing_costs_microseconds() -> None:
    """It is on the hot path of every step. Measured 18 µs where this was written; the best of many batches, for busy machines."""
    runner = executor(good)
    wanted = request("good", '{"n":5}')
    best = min([await batch(runner, wanted) for _ in range(30)])
    assert best < 60e-6, f"{best * 1e6:.0f} µs"


async def batch(runner: Any, wanted: Any) -> float:
    start = time.perf_counter()
    for _ in range(50):
        await runner.call(wanted)
    return (time.perf_counter() - start) / 50


@tool(side_effect="none")
def breaks() -> None:
    raise KeyError("no such ticket")


@tool(side_effect="none")
async def breaks_on_the_loop() -> None:
    raise KeyError("no such ticket")


@tool(side_effect="none")
def refuses() -> None:
    raise ToolError("ask for another ticket")


async def test_author_of_a_tool_that_breaks_finds_where_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """With run and step; the model still gets type and message alone."""
    for broken in (breaks, breaks_on_the_loop):
        caplog.clear()
        assert text(await call(broken)) == "KeyError: 'no such ticket'"
        [record] = caplog.records
        assert (record.name, record.levelno) == ("runfold.tool", logging.WARNING)
        assert record.getMessage() == f"run=run-1 seq=2 tool {broken.name} raised KeyError"
        assert vars(record)["runfold.run.id"] == "run-1"
        assert vars(record)["runfold.step.seq"] == 2
        assert 'raise KeyError("no such ticket")' in caplog.text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")


@tool(side_effect="none")
def breaks_without_a_message() -> None:
    raise Unspeakable


async def test_an_error_that_cannot_be_logged_loses_no_result() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ecs_logging.StdlibFormatter())
    logging.getLogger("runfold.tool").addHandler(handler)
    try:
        assert text(await call(breaks_without_a_message)) == "Unspeakable: its message cannot be read"
    finally:
        logging.getLogger("runfold.tool").removeHandler(handler)


async def test_what_a_tool_says_on_purpose_is_no_fault_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert text(await call(refuses)) == "ask for another ticket"
    assert caplog.records == []
