"""The four ways a tool call ends, as `ToolResult`: bounded in size, readable for the model, safe to log and to send for ever.

A result is final when it is made: nothing later may cut or mend it, or the conversation would no longer be what the model saw.
"""

import json
from typing import Any

from runfold.core.events import ToolStatus
from runfold.ports import ToolResult
from runfold.tools.context import ToolError
from runfold.tools.encoding import Unserialisable, content_json, text_json

MAX_RESULT_BYTES = 256 * 1024  # of content_json in UTF-8: a turn's results share a transaction of 1 MB
MAX_MESSAGE_CHARS = 2000
_LONGEST_ESCAPE = 6  # \u001f


def done(value: Any) -> ToolResult:
    """What the tool returned. Raises what `content_json` raises."""
    content = content_json(value)
    if _size(content) <= MAX_RESULT_BYTES:
        return ToolResult(ToolStatus.DONE, content)
    if content.startswith("["):
        raise Unserialisable(f"Content of {_size(content)} bytes: {MAX_RESULT_BYTES} are allowed, and blocks cannot be cut")
    return ToolResult(ToolStatus.DONE, cut(content))


def failed(message: str) -> ToolResult:
    message = message if message.strip() else "the tool failed without a message"
    shown = message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + " […]"
    return ToolResult(ToolStatus.ERROR, text_json(shown))


def raised(error: BaseException) -> ToolResult:
    """Of a `ToolError` its message alone; of anything else the type too. Never a traceback."""
    if isinstance(error, Unserialisable):
        return failed(f"The tool ran, but its result cannot be shown: {error}")
    if isinstance(error, ToolError):
        return failed(_text(error))
    return failed(f"{type(error).__name__}: {_text(error)}".removesuffix(": "))


def timed_out(seconds: float) -> ToolResult:
    message = f"The tool did not end within {seconds:g} s. Whether it took effect is unknown."
    return ToolResult(ToolStatus.TIMED_OUT, text_json(message))


def cut(content: str) -> str:
    """A JSON string shortened to `MAX_RESULT_BYTES`, its end saying so."""
    note = text_json(f"\n[cut here: the whole result has {_size(content)} bytes]")[1:]
    kept = content.encode()[: MAX_RESULT_BYTES - len(note)].decode(errors="ignore")
    return _whole(kept) + note


def _whole(start: str) -> str:
    """The start of a JSON string without the escape that was cut through."""
    for end in range(len(start), len(start) - _LONGEST_ESCAPE, -1):
        try:
            json.loads(start[:end] + '"')
        except ValueError:
            continue
        return start[:end]
    raise AssertionError("no escape is longer")


def _size(content: str) -> int:
    return len(content) if content.isascii() else len(content.encode())


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "its message cannot be read"
