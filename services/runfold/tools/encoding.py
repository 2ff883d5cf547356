"""Whatever a tool returns, as the text that the model will see.

Text stays text. Everything else becomes its JSON: None is ``null``, and what JSON has no type for is written by pydantic's rules
(bytes as URL-safe base64, dates as ISO 8601, Decimal as text, sets as arrays). Blank text is shown as JSON too, so that it can be
seen. What has no JSON form raises `Unserialisable`. The result is always valid UTF-8 and never empty.
"""

import inspect
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pydantic_core import to_jsonable_python

from runfold.tools.context import Content

_SURROGATE = re.compile("[\ud800-\udfff]")


class Unserialisable(Exception):
    """The result has no JSON form; the message names its type."""


def content_json(value: Any) -> str:
    """A JSON string, or the array of a `Content`. Raises `Unserialisable`, and what the value's own code raises."""
    if isinstance(value, Content):
        return clean(to_json(_blocks(value)))
    return text_json(value if isinstance(value, str) and value.strip() else to_json(value))


def text_json(text: str) -> str:
    """Text as a JSON string, free of what UTF-8 cannot hold."""
    return _encode(clean(text))


def clean(text: str) -> str:
    """Join surrogate pairs, replace lone surrogates by U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def to_json(value: Any) -> str:
    try:
        return _encode_by_rule(value)
    except (TypeError, ValueError, RecursionError) as error:
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that it was never awaited
        raise Unserialisable(f"{name_of(type(value))}: {error}") from error


def name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _encode_by_rule(value: Any) -> str:
    try:
        return _encode(value)
    except TypeError as error:
        if "keys must be" not in str(error):
            raise
    return _encode(to_jsonable_python(value, bytes_mode="base64"))  # dates, tuples … as keys


def _plain(value: Any) -> Any:
    """Called for what the json module cannot write."""
    if isinstance(value, Iterator | AsyncIterator):  # pydantic would drain it, and some never end
        raise TypeError(f"{name_of(type(value))} is no value; return a list")
    if inspect.isawaitable(value):
        raise TypeError(f"{name_of(type(value))} was not awaited; declare the tool with async def and await it")
    return to_jsonable_python(value, bytes_mode="base64")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def _blocks(content: Content) -> list[dict[str, Any]]:
    blocks = [dict(block) for block in content.blocks]
    if not blocks:
        raise Unserialisable("Content needs one block at least")
    for block in blocks:
        if not isinstance(block.get("type"), str):
            raise Unserialisable(f"Content: a block needs a 'type', got the keys {sorted(block)}")
        if block["type"] == "text" and not str(block.get("text", "")).strip():
            raise Unserialisable("Content: a text block must not be blank")
    return blocks
