"""T02: whatever a tool returns or raises becomes one result that can be logged, sent and sent again."""

import asyncio
import dataclasses
import itertools
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from runfold.core.events import ToolStatus
from runfold.ports import ToolResult
from runfold.tools import Content, ToolError, results, tool
from runfold.tools.encoding import Unserialisable

from .tool_calls import call, text


@dataclasses.dataclass
class Point:
    x: int
    at: datetime


class Row(BaseModel):
    name: str
    price: Decimal


class Color(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Pair(NamedTuple):
    a: int
    b: str


def circular() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    return loop


async def unawaited() -> None: ...


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
DONE: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "null"),
    "text": (lambda: "plain {text}", "plain {text}"),
    "empty": (lambda: "", '""'),
    "blank": (lambda: " \n", r'" \n"'),
    "bytes": (lambda: b"\x89PNG", '"iVBORw=="'),
    "number": (lambda: 0, "0"),
    "false": (lambda: False, "false"),
    "datetime": (lambda: NOON, '"2026-11-30T12:00:00Z"'),
    "timedelta": (lambda: timedelta(hours=1), '"PT1H"'),
    "Decimal": (lambda: Decimal("1.10"), '"1.10"'),
    "set": (lambda: {1}, "[1]"),
    "tuple": (lambda: (1, "a"), '[1,"a"]'),
    "int keys": (lambda: {1: "a"}, '{"1":"a"}'),
    "tuple keys": (lambda: {1: "a", (1, 2): b"\xff"}, '{"1":"a","1,2":"_w=="}'),
    "dataclass": (lambda: Point(1, NOON), '{"x":1,"at":"2026-11-30T12:00:00Z"}'),
    "pydantic": (lambda: [Row(name="ä", price=Decimal(2))], '[{"name":"ä","price":"2"}]'),
    "named tuple": (lambda: Pair(1, "b"), '[1,"b"]'),
    "enum": (lambda: {"c": Color.RED}, '{"c":"red"}'),
    "str enum": (lambda: Word.YES, "yes"),
    "uuid": (lambda: uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    "path": (lambda: Path("a/b"), '"a/b"'),
    "surrogate": (lambda: "a\ud800b", "a\ufffdb"),
    "surrogate pair": (lambda: "\ud83d\ude00", "😀"),
    "surrogate within": (lambda: {"k\udfff": "v\ud800"}, '{"k\ufffd":"v\ufffd"}'),
    "unicode": (lambda: ["ü\x00\u2028"], '["ü\\u0000\u2028"]'),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN": (lambda: float("nan"), "float"),
    "inf within": (lambda: {"rate": float("inf")}, "Out of range float"),
    "object": (object, "object"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "endless generator within": (lambda: {"rows": itertools.cycle([1])}, "itertools.cycle"),
    "map": (lambda: map(str, [1]), "map"),
    "circular": (circular, "dict: Circular reference"),
    "exception": (lambda: ValueError("secret"), "ValueError"),
    "coroutine": (unawaited, "coroutine"),
    "function": (lambda: len, "builtin_function_or_method"),
    "class": (lambda: Point, "type"),
    "deep": (lambda: deep(50_000), "list"),
    "huge int": (lambda: 10**5000, "int"),
}


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


async def both(make: Callable[[], Any]) -> list[ToolResult]:
    """The result of a sync and of an async tool that return the same; each body ran once."""
    runs: list[str] = []

    @tool(side_effect="none")
    def blocking() -> Any:
        runs.append("sync")
        return make()

    @tool(side_effect="none")
    async def cooperative() -> Any:
        runs.append("async")
        return make()

    found = [await call(blocking), await call(cooperative)]
    assert runs == ["sync", "async"]
    return found


@pytest.mark.parametrize("kind", DONE)
async def test_T02_1_value_becomes_text_that_is_never_empty(kind: str) -> None:
    """T02.1"""
    make, expected = DONE[kind]
    for result in await both(make):
        assert (result.status, text(result)) == (ToolStatus.DONE, expected)


@pytest.mark.parametrize("kind", REFUSED)
async def test_T02_2_value_without_json_form_is_an_error_naming_its_type(kind: str) -> None:
    """T02.2"""
    make, named = REFUSED[kind]
    for result in await both(make):
        assert result.status is ToolStatus.ERROR
        assert text(result).startswith("The tool ran, but its result cannot be shown: ")
        assert named in text(result)
        assert "secret" not in text(result)


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary() | st.dates()


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.tuples(inner) | st.dictionaries(ANY_TEXT | st.integers(), inner)


@given(value=st.recursive(LEAVES, containers, max_leaves=8))
def test_T02_1_any_value_is_a_valid_result_or_a_refusal(value: Any) -> None:
    """T02.1"""
    try:
        result = results.done(value)
    except Unserialisable as refusal:
        result = results.raised(refusal)
    assert text(result)


# ---- content blocks


async def test_content_blocks_are_passed_on_as_they_are() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "aGk=", "media_type": "image/png"}}

    @tool(side_effect="none")
    def show() -> Content:
        return Content([{"type": "text", "text": "see\ud800"}, image])

    result = await call(show)
    assert result.status is ToolStatus.DONE
    assert json.loads(result.content_json) == [{"type": "text", "text": "see\ufffd"}, image]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "one block at least"),
        ([{"text": "x"}], "needs a 'type'"),
        ([{"type": "text", "text": " "}], "must not be blank"),
        ([{"type": "image", "source": object()}], "object"),
        ([{"type": "image", "data": "x" * results.MAX_RESULT_BYTES}], "cannot be cut"),
    ],
    ids=["none", "no type", "blank", "not JSON", "too large"],
)
async def test_content_that_the_api_would_refuse_is_an_error(blocks: list[dict[str, Any]], message: str) -> None:
    @tool(side_effect="none")
    def show() -> Content:
        return Content(blocks)

    result = await call(show)
    assert result.status is ToolStatus.ERROR
    assert message in text(result)


# ---- size


@pytest.mark.parametrize("unit", ["x", "ü", "😀", '"', "\n", "\x00", "\\", "a\x01ü"])
@pytest.mark.parametrize("shift", range(1, 8))
def test_large_result_is_cut_to_valid_text_that_says_so(unit: str, shift: int) -> None:
    whole = "s" * shift + unit * results.MAX_RESULT_BYTES
    result = results.done(whole)
    size = len(result.content_json.encode())
    assert results.MAX_RESULT_BYTES - 12 < size <= results.MAX_RESULT_BYTES
    kept, note = text(result).rsplit("\n", 1)
    assert whole.startswith(kept)
    assert note.startswith("[cut here: the whole result has ")


@given(value=st.text(st.characters(exclude_categories=()), min_size=100), limit=st.integers(80, 120))
def test_cut_is_always_valid(value: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "MAX_RESULT_BYTES", limit)
        result = results.done(value)
    assert text(result)
    assert len(result.content_json.encode()) <= limit


def test_result_of_exactly_the_limit_is_whole() -> None:
    whole = "x" * (results.MAX_RESULT_BYTES - 2)
    assert text(results.done(whole)) == whole


# ---- exceptions


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message either")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolError("no such ticket"), "no such ticket"),
        (ToolError(), "the tool failed without a message"),
        (ToolError("lone \ud800"), "lone \ufffd"),
        (KeyError("id"), "KeyError: 'id'"),
        (TimeoutError(), "TimeoutError"),
        (Silent(), "Silent: its message cannot be read"),
        (SystemExit(1), "SystemExit: 1"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError("own"), "CancelledError: own"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
        (RuntimeError("x" * 100_000), "RuntimeError: " + "x" * (results.MAX_MESSAGE_CHARS - 14) + " […]"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_tool_raises_is_an_error_without_a_traceback(error: BaseException, expected: str) -> None:
    def fail() -> None:
        raise error

    for result in await both(fail):
        assert (result.status, text(result)) == (ToolStatus.ERROR, expected)
