"""The message list the model sees, rebuilt exactly from the log.

Rules of rendering, fixed for ever because replays must not differ in value from what was sent:

1. An assistant turn is its content blocks as received, in order. Left out: text blocks that are empty or blank (the API refuses
   them), and the whole message when nothing remains.
2. A tool_use whose input is not a JSON object, or holds numbers JSON can't carry back, is shown with the input
   ``{"invalid_input": <what was received, as text>}``; its call is answered with an error.
3. A turn with tool calls is answered by exactly one user message: one tool_result per tool_use, in tool_use order.
4. A tool result that is neither a JSON string nor an array of blocks the API takes is shown as the text that it is.
5. Half a surrogate pair, which UTF-8 can't carry, becomes U+FFFD.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any

DEEPEST = 200  # levels of nesting. Python's parser gives up at another depth each time: this limit is far below, and fixed

CACHED = 64 * 1024  # characters of an answer that is worth keeping

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation; ``content_json`` is its array of content blocks as JSON text."""

    role: str  # "user" or "assistant"
    content_json: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One client tool call the model asked for; ``input_json`` is a JSON object exactly when the call can be made."""

    id: str
    name: str
    input_json: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one assistant answer means."""

    text: str  # all text blocks joined
    tool_uses: tuple[ToolUse, ...]
    rendered: Message | None  # None: nothing of it can be sent back
    problem: str | None = None  # why it breaks the rules of the API; the same words in every build


def user_text(text: str) -> Message:
    return Message("user", dump([{"type": "text", "text": text}]))


def dump(value: object) -> str:
    """Compact JSON that UTF-8 can carry. Numbers that JSON can't are written as Python reads them: NaN, Infinity."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if is_utf8(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can carry a text: it holds no half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- an assistant turn


def read_turn(content_json: str) -> Turn:
    """Take an answer's content apart. Never raises: what can't be read is a `Turn` with a ``problem``."""
    return _read_turn(content_json) if len(content_json) > CACHED else _cached_turn(content_json)


@lru_cache(maxsize=256)  # the same answer is read when it is planned and when it is read back
def _cached_turn(content_json: str) -> Turn:
    return _read_turn(content_json)


def _read_turn(content_json: str) -> Turn:
    try:
        text = _mended(content_json)
        blocks = _parse(text)
    except ValueError as error:
        return Turn("", (), None, f"the content is {error}")
    if problem := _problem(blocks):
        return Turn("", (), None, problem)
    return Turn(_text(blocks), tuple(_tool_use(block) for block in blocks if block["type"] == "tool_use"), _render(blocks, text))


def _parse(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, in the same words whatever the Python and the depth of its stack."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if value is None or _is_deep(text, value):
        raise ValueError(f"no JSON, or nested more than {DEEPEST} levels deep")
    return value


def _is_deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST:
        return False  # the usual case, without a walk
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        level, depth = [child for parent in level for child in _children(parent)], depth + 1
    return depth > DEEPEST


def _children(value: object) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _mended(text: str) -> str:
    """JSON text without halves of surrogate pairs, written out or escaped; most texts as they are."""
    escaped = "\\ud" in text or "\\uD" in text
    return dump(_parse(text)) if escaped or not is_utf8(text) else text


def _finite(value: object) -> bool:
    """Whether JSON can carry all numbers in a value."""
    found = [value]
    for item in found:  # grows on the way
        if isinstance(item, float) and not isfinite(item):
            return False
        found.extend(_children(item))
    return True


def _problem(blocks: object) -> str | None:
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return "the content is no array of blocks"
    if (problem := next(filter(None, map(_block_problem, blocks)), None)) is not None:
        return problem
    counts = Counter(block["id"] for block in blocks if block["type"] == "tool_use")
    twice = [id_ for id_, count in counts.items() if count > 1]
    return f"tool_use ids occur twice in one turn: {', '.join(twice)[:200]}" if twice else None


def _block_problem(block: Block) -> str | None:
    """Why the API would never take a block back. Types that we don't know are the API's business."""
    match block.get("type"):
        case "text" if not isinstance(block.get("text"), str):
            return "a text block has no text"
        case "tool_use" if not all(isinstance(block.get(key), str) and block[key] for key in ("id", "name")):
            return "a tool_use has no id or no name"
        case "tool_result":
            return "a tool_result stands in an assistant turn"
        case str():
            sendable = _finite({**block, "input": None} if block["type"] == "tool_use" else block)
            return None if sendable else "a number is none that JSON can carry"
        case _:
            return "a block has no type"


def _text(blocks: Sequence[Block]) -> str:
    return "".join(block["text"] for block in blocks if block["type"] == "text")


def _tool_use(block: Block) -> ToolUse:
    received = dump(block.get("input"))
    return ToolUse(block["id"], block["name"], received if _finite(block.get("input")) else dump(received))


def _render(blocks: Sequence[Block], text: str) -> Message | None:
    kept = [_sendable(block) for block in blocks if not _blank(block)]
    if not kept:
        return None
    unchanged = len(kept) == len(blocks) and all(new is old for new, old in zip(kept, blocks, strict=True))
    return Message("assistant", text if unchanged else dump(kept))


def _blank(block: Block) -> bool:
    return bool(block["type"] == "text" and not block["text"].strip())


def _sendable(block: Block) -> Block:
    received = block.get("input")
    if block["type"] != "tool_use" or (isinstance(received, dict) and _finite(received)):
        return block
    return {**block, "input": {"invalid_input": dump(received)}}


# ---- the user turn that answers it


def tool_results(results: Sequence[tuple[str, str, bool]]) -> Message:
    """The one user message that answers a turn: (tool_use id, content as JSON, is_error) each."""
    blocks = (
        f'{{"type":"tool_result","tool_use_id":{dump(id_)},"content":{_result(content_json)}{_ERROR if is_error else ""}}}'
        for id_, content_json, is_error in results
    )
    return Message("user", f"[{','.join(blocks)}]")


_ERROR = ',"is_error":true'


def _result(content_json: str) -> str:
    try:
        text = _mended(content_json)
        value = _parse(text)
    except ValueError:
        return dump(content_json)
    return text if isinstance(value, str) or _takes(value) else dump(text)


def _takes(value: object) -> bool:
    """Whether the API takes a value as the content of a tool_result."""
    return isinstance(value, list) and bool(value) and all(isinstance(block, dict) and _is_content(block) for block in value)


def _is_content(block: Block) -> bool:
    return _block_problem(block) is None and block["type"] != "tool_use" and not _blank(block)


def extend_digest(digest: str, message: Message) -> str:
    """The digest of a prefix with one more message: a chain, so that a step costs what the step adds."""
    return sha256(f"{digest}\n{message.role}\n{message.content_json}".encode("utf-8", "surrogatepass")).hexdigest()
