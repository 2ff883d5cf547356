"""T01: a tool that never returns costs its own timeout, and nothing else. (2 s in the case, less here: scaled.)"""

import asyncio
import contextvars
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from runfold.core.events import ToolStatus
from runfold.ports import ToolResult
from runfold.tools import Executor, Registry, Threads, Tool, tool
from runfold.tools.executor import GRACE
from tests.cases.harness_processes import slowness

from .tool_calls import executor, request, text

TIMEOUT = 0.2
entered: list[threading.Thread] = []
release = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    entered.clear()
    release.clear()
    yield
    release.set()


@tool(timeout=TIMEOUT, side_effect="none")
def sleeps() -> None:
    time.sleep(600)


@tool(timeout=TIMEOUT, side_effect="none")
def receives() -> bytes:
    ours, _theirs = socket.socketpair()
    return ours.recv(1)


@tool(timeout=TIMEOUT, side_effect="none")
def spins() -> None:
    entered.append(threading.current_thread())
    while True:
        pass


@tool(timeout=TIMEOUT, side_effect="none")
def spins_stubbornly() -> None:
    entered.append(threading.current_thread())
    for _ in range(2):
        try:
            while True:
                pass
        except BaseException:
            continue
    while True:
        pass


@tool(timeout=TIMEOUT, side_effect="none")
async def swallows_cancellation() -> str:
    while not release.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "late"


@tool(timeout=TIMEOUT, side_effect="none")
def waits() -> str:
    entered.append(threading.current_thread())
    release.wait()
    return "late"


@tool(side_effect="none")
def quick() -> str:
    return "quick"


HANGING: list[Tool[..., Any]] = [sleeps, receives, spins, spins_stubbornly, swallows_cancellation, waits]


async def timed(runner: Executor, name: str) -> tuple[ToolResult, float]:
    start = time.monotonic()
    result = await runner.call(request(name))
    return result, time.monotonic() - start


def ended(thread: threading.Thread) -> bool:
    thread.join(timeout=10)
    return not thread.is_alive()


@pytest.mark.parametrize("hanging", HANGING, ids=lambda hanging: hanging.name)
async def test_T01_1_tool_that_never_returns_times_out(hanging: Tool[..., Any]) -> None:
    """T01.1"""
    result, seconds = await timed(executor(hanging), hanging.name)
    assert result.status is ToolStatus.TIMED_OUT
    assert text(result) == "The tool did not end within 0.2 s. Whether it took effect is unknown."
    assert TIMEOUT <= seconds < TIMEOUT + 5 * slowness()
    release.set()


@pytest.mark.parametrize("spinning", [spins, spins_stubbornly], ids=lambda spinning: spinning.name)
async def test_T01_2_spinning_thread_is_ended(spinning: Tool[..., Any]) -> None:
    """T01.2: or it would take its share of the interpreter for ever."""
    await timed(executor(spinning), spinning.name)
    assert all([await asyncio.to_thread(ended, thread) for thread in entered])


async def test_T01_2_thirty_hanging_tools_do_not_slow_normal_ones() -> None:
    """T01.2 V2"""
    threads = Threads()
    runner = Executor(Registry([sleeps, receives, spins, quick]), threads)
    before = await median(runner)
    await asyncio.gather(*(timed(runner, name) for name in ["sleeps", "receives"] * 12 + ["spins"] * 6))
    assert len(threads.given_up) >= 24, "those that sit in a system call are left there"
    assert all([await asyncio.to_thread(ended, thread) for thread in entered])
    results = await asyncio.gather(*(timed(runner, "quick") for _ in range(100)))
    assert {text(result) for result, _ in results} == {"quick"}
    assert max(seconds for _, seconds in results) < slowness()
    assert (after := await median(runner)) < max(0.01 * slowness(), 5 * before), f"median {after} s, {before} s before"


async def median(runner: Executor) -> float:
    """Seconds of a quick call, one after the other."""
    return sorted([(await timed(runner, "quick"))[1] for _ in range(50)])[25]


async def test_late_result_is_dropped_and_its_thread_not_reused() -> None:
    threads = Threads()
    runner = Executor(Registry([waits, quick]), threads)
    await runner.call(request("waits"))
    assert len(threads.given_up) == 1
    release.set()
    assert await asyncio.to_thread(ended, entered[0])
    assert text(await runner.call(request("quick"))) == "quick"


async def test_thread_is_reused_when_its_tool_has_returned() -> None:
    @tool(side_effect="none")
    def which() -> str:
        return str(threading.get_ident())

    runner = executor(which)
    assert len({text(await runner.call(request("which"))) for _ in range(5)}) == 1


@pytest.mark.parametrize("hanging", [waits, swallows_cancellation, sleeps], ids=lambda hanging: hanging.name)
async def test_cancel_reaches_into_a_running_tool_at_once(hanging: Tool[..., Any]) -> None:
    patient = tool(name=hanging.name, timeout=600, side_effect="none")(hanging.function)
    running = asyncio.create_task(executor(patient).call(request(hanging.name)))
    await asyncio.sleep(0)
    running.cancel()
    start = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - start < 5 * slowness(), "long before its timeout"
    release.set()


async def test_cancelled_async_tool_may_clean_up() -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    @tool(side_effect="none")
    async def holds() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    running = asyncio.create_task(executor(holds).call(request("holds")))
    await asyncio.wait_for(started.wait(), 5)
    running.cancel()
    await asyncio.wait_for(cleaned.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_timed_out_async_tool_has_cleaned_up_when_the_result_is_there() -> None:
    cleaned: list[str] = []

    @tool(timeout=0.05, side_effect="none")
    async def holds() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(GRACE / 10)
            cleaned.append("yes")

    assert (await executor(holds).call(request("holds"))).status is ToolStatus.TIMED_OUT
    assert cleaned == ["yes"]


async def test_blocking_tools_run_side_by_side_and_leave_the_loop_alone() -> None:
    together = threading.Barrier(8)

    @tool(timeout=30, side_effect="none")
    def meets() -> int:
        return together.wait(20)

    runner = executor(meets)
    results = await asyncio.gather(*(runner.call(request("meets")) for _ in range(8)))
    assert {text(result) for result in results} == {str(n) for n in range(8)}


async def test_tools_see_the_callers_context_variables() -> None:
    run = contextvars.ContextVar("run", default="none")

    @tool(side_effect="none")
    def blocking() -> str:
        return run.get()

    @tool(side_effect="none")
    async def cooperative() -> str:
        return run.get()

    run.set("run-1")
    runner = executor(blocking, cooperative)
    assert [text(await runner.call(request(name))) for name in ("blocking", "cooperative")] == ["run-1", "run-1"]


async def test_idle_threads_are_bounded_and_end_on_close() -> None:
    threads = Threads(keep_idle=2)
    ready = threading.Barrier(5)
    jobs = [threads.start(lambda: ready.wait(20) * 0 + threading.get_ident()) for _ in range(5)]
    idents = {await job.result for job in jobs}
    assert len(idents) == 5
    again = [threads.start(threading.get_ident) for _ in range(2)]
    assert {await job.result for job in again} < idents
    alive = [thread for thread in threading.enumerate() if thread.ident in idents]
    threads.close()
    assert all([await asyncio.to_thread(ended, thread) for thread in alive])
