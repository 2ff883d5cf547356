"""T: whatever a tool does or returns, and whatever the model asks of it, the run goes on (cases T01, T02, T05, T06)."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from prometheus_client import generate_latest
from pydantic import BaseModel

from runfold.core.events import Reason, Status, ToolStatus, ToolStepFinished
from runfold.testing import Script
from runfold.tools import ToolContext, tool
from tests.cases.engine_scene import AnyTool, Ledger, Scene, recording, stage
from tests.cases.harness_processes import slowness

# ---- T01: in the case's profile a tool has 2 s; here it has 0.3 s, and so much longer it may take

TIMEOUT, SLACK = 0.3, 1.5


@contextmanager
def hanging_tools(ledger: Ledger, **options: Any) -> Iterator[dict[str, AnyTool]]:
    """Tools that never return, each in its way; at the end the threads that sit in a system call are let go."""
    released = threading.Event()
    ours, silent = socket.socketpair()
    declared: dict[str, Any] = {"timeout": TIMEOUT, "idempotency": "optional", **options}

    @tool(name="sleeps", **declared)
    def sleeps(context: ToolContext) -> str:
        ledger.enter(context)
        released.wait(600)
        return "too late"

    @tool(name="receives", **declared)
    def receives(context: ToolContext) -> str:
        ledger.enter(context)
        return ours.recv(1).decode()

    @tool(name="spins", **declared)
    def spins(context: ToolContext) -> str:
        ledger.enter(context)
        while True:
            pass

    @tool(name="clings", **declared)
    async def clings(context: ToolContext) -> str:
        ledger.enter(context)
        while not released.is_set():
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                continue
        return "too late"

    yield {"sleeps": sleeps, "receives": receives, "spins": spins, "clings": clings}
    released.set()
    silent.close()  # ends the recv
    ours.close()


WAYS = ["sleeps", "receives", "spins", "clings"]


@pytest.mark.parametrize("way", WAYS)
async def test_t01_a_tool_that_never_returns_times_out_and_the_run_goes_on(way: str) -> None:
    async with stage(Script().then_tool_use("a", way, {}).then_text("done")) as scene:
        with hanging_tools(scene.ledger) as tools:
            scene.serve(tools[way])
            run = await scene.play()
            (end,) = scene.log(run.id, ToolStepFinished)
            assert end.status is ToolStatus.TIMED_OUT, "T01.1"
            assert TIMEOUT * 1000 <= end.latency_ms <= (TIMEOUT + SLACK * slowness()) * 1000, "T01.1"
            (result,) = scene.asked("go", 2)["messages"][2]["content"]
            assert result["is_error"], "T01.1"
            assert run.status is Status.SUCCEEDED, "T01.1"


async def test_t01_v2_thirty_of_them_leave_the_worker_as_quick_as_before() -> None:
    scripts = {f"hang {way}": Script().then_tool_use("a", way, {}).then_text("done") for way in WAYS}
    scripts["normal"] = Script().then_tools([(f"t{n}", "quick", {}) for n in range(8)]).then_text("done")
    async with stage(scripts) as scene:

        @tool(name="quick", side_effect="none")
        def quick() -> str:
            return "quick"

        with hanging_tools(scene.ledger) as tools:
            scene.serve(*tools.values(), quick)
            process = scene.start(max_tool_calls=64)
            ids = [await scene.submit(f"hang {WAYS[n % 4]}, {n}") for n in range(30)]
            for id_ in ids:
                assert (await scene.settled(id_)).status is Status.SUCCEEDED, "T01.1"
            generation = scene.broker.group.generation
            began = time.monotonic()
            run = await scene.play("normal")
            assert run.status is Status.SUCCEEDED
            assert time.monotonic() - began < 2 * slowness(), "T01.2: at normal speed"
            assert all(end.latency_ms < 500 * slowness() for end in scene.log(run.id, ToolStepFinished)), "T01.2"
            assert scene.broker.group.generation == generation, "T01.2: it stays in the group"
            assert scene.broker.group.has(process.name), "T01.2"


@pytest.mark.parametrize("way", WAYS)
async def test_t01_v3_one_that_must_not_be_repeated_waits_for_a_person(way: str) -> None:
    async with stage(Script().then_tool_use("a", way, {})) as scene:
        with hanging_tools(scene.ledger, repeatable=False) as tools:
            scene.serve(tools[way])
            run = await scene.play()
            assert (run.status, run.reason) == (Status.SUSPENDED, Reason.OUTCOME_UNKNOWN), "T01.3"
            assert run.waiting_tool_use_id == "a", "T01.3"
            assert not scene.log(run.id, ToolStepFinished), "T01.3"
            assert len(scene.ledger) == 1


# ---- T02


@dataclass
class Point:
    x: int
    when: datetime


class Ticket(BaseModel):
    id: int
    price: Decimal


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


async def unawaited() -> int:
    return 1


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SHOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "null"),
    "empty text": (lambda: "", '""'),
    "bytes": (lambda: b"\x89PNG", '"iVBORw=="'),
    "datetime": (lambda: NOON, '"2026-11-30T12:00:00Z"'),
    "Decimal": (lambda: Decimal("0.10"), '"0.10"'),
    "set": (lambda: {1}, "[1]"),
    "int and tuple keys": (lambda: {1: "a", (2, 3): "b"}, '{"1":"a","2,3":"b"}'),
    "dataclass": (lambda: Point(1, NOON), '{"x":1,"when":"2026-11-30T12:00:00Z"}'),
    "pydantic model": (lambda: Ticket(id=1, price=Decimal("0.10")), '{"id":1,"price":"0.10"}'),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN": (lambda: float("nan"), "float"),
    "object()": (object, "object"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "circular dict": (circular, "dict"),
    "exception": (lambda: ValueError("no"), "ValueError"),
    "coroutine": (unawaited, "coroutine"),
}


def returning(ledger: Ledger, make: Callable[[], Any]) -> AnyTool:
    """A blocking tool: what it returns is nobody's to await."""

    @tool(name="make", idempotency="optional")
    def returns(context: ToolContext) -> Any:
        ledger.enter(context)
        return make()

    return returns


async def result_of(scene: Scene, make: Callable[[], Any]) -> tuple[ToolStepFinished, dict[str, Any]]:
    """Play the run of one return value; how its tool ended, and the block that the model saw."""
    scene.serve(returning(scene.ledger, make))
    run = await scene.play()
    assert run.status is Status.SUCCEEDED, "T02.1"
    (end,) = scene.log(run.id, ToolStepFinished)  # T02.1
    assert len(scene.ledger) == 1, "T02.1"
    (block,) = scene.asked("go", 2)["messages"][2]["content"]
    assert block["content"].strip(), "T02.1: a result that can be seen"
    return end, block


@pytest.mark.parametrize("value", SHOWN)
async def test_t02_what_json_can_say_is_shown(value: str) -> None:
    make, expected = SHOWN[value]
    async with stage(Script().then_tool_use("a", "make", {}).then_text("done")) as scene:
        end, block = await result_of(scene, make)
        assert (end.status, block["content"]) == (ToolStatus.DONE, expected), "T02.2"
        assert "is_error" not in block


@pytest.mark.parametrize("value", REFUSED)
async def test_t02_what_json_cannot_say_is_an_error_that_names_the_type(value: str) -> None:
    make, type_name = REFUSED[value]
    async with stage(Script().then_tool_use("a", "make", {}).then_text("done")) as scene:
        end, block = await result_of(scene, make)
        assert (end.status, block["is_error"]) == (ToolStatus.ERROR, True), "T02.2"
        assert type_name in block["content"], "T02.2"


async def test_t02_a_restart_sends_the_same_bytes() -> None:
    """T02.3: the worker dies when the request that holds the results is under way; the next one sends the very same."""
    values = {name: make for name, (make, _) in (SHOWN | REFUSED).items()}
    calls: list[tuple[str, str, Any]] = [(f"t{n}", f"make{n}", {}) for n in range(len(values))]
    async with stage(Script().then_tools(calls).then_text("done").held("second")) as scene:
        scene.serve(*(_named(f"make{n}", make) for n, make in enumerate(values.values())))
        scene.start()
        id_ = await scene.submit()
        await scene.api.until_held("second")
        await scene.restart()
        await scene.api.until_hits(3)
        scene.api.release("second")
        assert (await scene.settled(id_)).status is Status.SUCCEEDED
        second, third = (json.dumps(scene.asked("go", n)["messages"]) for n in (2, 3))
        assert second == third, "T02.3"


def _named(name: str, make: Callable[[], Any]) -> AnyTool:
    @tool(name=name, side_effect="none")
    def returns() -> Any:
        return make()

    return returns


# ---- T05


async def test_t05_v1_a_tool_that_does_not_exist_is_an_answer_that_lists_those_that_do() -> None:
    async with stage(Script().then_tools([("a", "nope", {}), ("b", "good", {})]).then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "good"), recording(scene.ledger, "better"))
        run = await scene.play()
        unknown, good = scene.asked("go", 2)["messages"][2]["content"]
        assert unknown["is_error"], "T05.1"
        assert "good, better" in unknown["content"], "T05.1"
        assert "is_error" not in good, "T05.1"
        assert (run.status, scene.ledger.count("/b")) == (Status.SUCCEEDED, 1), "T05.1"


def series(scene: Scene) -> int:
    (process,) = scene.processes
    return sum(not line.startswith(b"#") for line in generate_latest(process.registry).splitlines())


async def test_t05_v2_two_hundred_invented_names_add_no_series() -> None:
    script = Script().then_tool_use("a0", "first", {}).then_text("done")
    invented = Script()
    for n in range(200):
        invented = invented.then_tool_use(f"a{n}", f"invented_{n}", {})
    async with stage({"one": script, "many": invented.then_text("done")}) as scene:
        await scene.play("one")
        before = series(scene)
        run = await scene.play("many", max_steps=1000)
        assert (run.status, run.steps) == (Status.SUCCEEDED, 401)
        assert series(scene) <= before + 5, "T05.2"
        exported = generate_latest(scene.processes[0].registry).decode()
        assert "invented" not in exported, "T05.2"
        assert run.id not in exported, "T05.2: a run id is never a label"


async def test_t05_v3_names_of_any_shape_reach_neither_labels_nor_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "runfold.step")
    names = ["n" * 300, 'with "quotes"', "with\nnewline", "\x1b[31mred", "__proto__"]
    script = Script().then_tools([(f"a{n}", name, {}) for n, name in enumerate(names)]).then_text("done")
    async with stage(script) as scene:
        run = await scene.play()
        assert run.status is Status.SUCCEEDED
        ends = scene.log(run.id, ToolStepFinished)
        assert [end.status for end in ends] == [ToolStatus.ERROR] * len(names), "T05.1"
        exported = generate_latest(scene.processes[0].registry).decode()
        assert not any(name[:20] in exported for name in names), "T05.2"
        assert all(message.isprintable() for message in caplog.messages), "T05.3: one line per step"
        assert all(len(message) < 1000 for message in caplog.messages), "T05.3"


# ---- T06

DEEP: Any = "bottom"
for _ in range(100):
    DEEP = [DEEP]
INVALID_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"input": "str"}, "object"),
    "text that is half an object": ({"partial_json": '"{\\"a\\":1"'}, "object"),
    "half an object": ({"partial_json": '{"a":1'}, "object"),
    "a list": ({"input": []}, "object"),
    "null": ({"input": None}, "object"),
    "a missing field": ({"input": {}}, "'count'"),
    "a further field": ({"input": {"count": 1, "colour": "red"}}, "'colour'"),
    "a wrong type": ({"input": {"count": "1"}}, "'count'"),
    "a number that is none": ({"partial_json": '{"count":1e400}'}, "count"),
    "__proto__": ({"partial_json": '{"count":1,"extra":{"__proto__":1}}'}, "__proto__"),
    "100 levels": ({"input": {"count": 1, "extra": DEEP}}, "nested"),
}


@pytest.mark.parametrize("variant", INVALID_INPUTS)
async def test_t06_invalid_input_is_answered_and_corrected(variant: str) -> None:
    given, named = INVALID_INPUTS[variant]
    block = {"type": "tool_use", "id": "a", "name": "act", **given}
    script = Script().then_message([block], "tool_use").then_tool_use("b", "act", {"count": 1}).then_text("done")
    async with stage(script) as scene:

        @tool(name="act", idempotency="optional")
        def act(count: int, context: ToolContext, extra: Any = None) -> str:
            scene.ledger.enter(context, count)
            return "ok"

        scene.serve(act)
        run = await scene.play()
        (result,) = scene.asked("go", 2)["messages"][2]["content"]
        assert scene.ledger.count("/a") == 0, "T06.1"
        assert result["is_error"], "T06.1"
        assert named in result["content"], "T06.1: it says what is wrong"
        assert isinstance(scene.asked("go", 2)["messages"][1]["content"][0]["input"], dict), "T06.2"
        assert run.status is Status.SUCCEEDED, "T06.3"
        assert len(scene.ledger) == 1, "T06.3"
