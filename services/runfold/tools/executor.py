"""Runs tools: the implementation of `ports.Tools`.

Whatever goes wrong with a call is a result for the model to read. The result is made whole (serialised, cut, cleaned) before the
call returns, inside the same guard as the tool itself, so that nothing can fail between a side effect and its event.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from runfold.ports import ToolCallRequest, ToolPolicy, ToolResult
from runfold.tools.context import ToolContext, ToolError, call_fields, in_call
from runfold.tools.encoding import Unserialisable
from runfold.tools.inputs import InvalidInput
from runfold.tools.registry import AnyTool, Registry
from runfold.tools.results import done, failed, raised, timed_out
from runfold.tools.threads import Threads

log = logging.getLogger("runfold.tool")

GRACE = 0.5  # seconds that a tool gets to clean up after its timeout


class Outcome(NamedTuple):
    """How a call ended. ``error``: what the tool raised and did not mean to; its author wants to see where."""

    result: ToolResult
    error: BaseException | None = None


class Executor:
    """The tools of one agent. ``remark`` begins the answer to a call of a tool that is not among them."""

    def __init__(self, registry: Registry, threads: Threads, remark: str = "") -> None:
        self._registry, self._threads, self._remark = registry, threads, remark
        self._cancelled: set[asyncio.Task[Outcome]] = set()  # the loop itself holds tasks only weakly

    def policy(self, name: str) -> ToolPolicy:
        tool = self._registry.get(name)
        return ToolPolicy() if tool is None else tool.policy

    async def call(self, request: ToolCallRequest) -> ToolResult:
        tool = self._registry.get(request.name)
        if tool is None:
            return failed(self._unknown(request.name))
        try:
            arguments = tool.arguments(request.input_json)
        except InvalidInput as wrong:
            return failed(f"Invalid input, the tool was not run: {wrong}")
        context = _context(request)
        if tool.context is not None:
            arguments[tool.context] = context
        with in_call(context):
            return await self._run(tool, arguments)

    async def _run(self, tool: AnyTool, arguments: dict[str, Any]) -> ToolResult:
        running, give_up = self._start(tool, arguments)
        try:
            await asyncio.wait((running,), timeout=tool.timeout)
            if running.done():
                return failed("The tool cancelled itself.") if running.cancelled() else _told(tool, running.result())
            give_up()
            await asyncio.wait((running,), timeout=GRACE)
        except asyncio.CancelledError:
            give_up()
            raise
        return timed_out(tool.timeout)

    def _start(self, tool: AnyTool, arguments: dict[str, Any]) -> tuple[asyncio.Future[Outcome], Callable[[], object]]:
        if tool.is_async:
            task = asyncio.create_task(_awaited(tool, arguments))
            return task, partial(self._cancel, task)
        job = self._threads.start(partial(_called, tool, arguments))
        return job.result, job.give_up

    def _cancel(self, task: asyncio.Task[Outcome]) -> None:
        self._cancelled.add(task)
        task.add_done_callback(self._cancelled.discard)
        task.cancel()

    def _unknown(self, name: str) -> str:
        shown = repr(name if len(name) <= 80 else name[:80] + "…")
        available = ", ".join(self._registry.names) or "none"
        return f"{self._remark}There is no tool {shown}. Available tools: {available}"


def _called(tool: AnyTool, arguments: dict[str, Any]) -> Outcome:
    try:
        return Outcome(done(tool.function(**arguments)))
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a tool cannot end the worker
        return _raised(error)


async def _awaited(tool: AnyTool, arguments: dict[str, Any]) -> Outcome:
    try:
        return Outcome(done(await tool.function(**arguments)))
    except BaseException as error:  # CancelledError too: if we cancelled it nobody looks at the result, else it is the tool's own
        return _raised(error)


def _raised(error: BaseException) -> Outcome:
    return Outcome(raised(error), None if isinstance(error, ToolError | Unserialisable) else error)


def _told(tool: AnyTool, outcome: Outcome) -> ToolResult:
    """The result. A fault is logged, and on the loop: a given-up thread can be struck while it holds the log's lock."""
    if outcome.error is not None:
        with suppress(BaseException):  # an error's __str__ is the tool's code too: what it raises must not cost the result
            _log(tool, outcome.error)
    return outcome.result


def _log(tool: AnyTool, error: BaseException) -> None:
    call = call_fields()
    where = f"run={call['runfold.run.id'][:8]} seq={call['runfold.step.seq']}"
    log.warning("%s tool %s raised %s", where, tool.name, type(error).__name__, exc_info=error, extra=call)


def _context(request: ToolCallRequest) -> ToolContext:
    return ToolContext(request.run_id, request.tool_use_id, request.idempotency_key, request.attempt, request.seq)
