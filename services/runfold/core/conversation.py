"""The message list the model sees, rebuilt exactly from the log.

Rules of rendering, fixed for ever because replays must not differ in value from what was sent:

1. An assistant turn is its content blocks as received, in order. Left out: text blocks that are empty or blank (the API refuses
   them), and the whole message when nothing remains.
2. A tool_use whose input is not a JSON object, or holds numbers JSON can't carry back, is shown with the input
   ``{"invalid_input": <what was received, as text>}``; its call is answered with an error.
3. A turn with tool calls is answered by exactly one user message: one tool_result per tool_use, in tool_use order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation; ``content_json`` is its array of content blocks as JSON text."""

    role: str  # "user" or "assistant"
    content_json: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One client tool call the model asked for; ``input_json`` is what it sent, object or not."""

    id: str
    name: str
    input_json: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What one assistant answer means."""

    text: str  # all text blocks joined
    tool_uses: tuple[ToolUse, ...]
    rendered: Message | None  # None: nothing of it can be sent back
    problem: str | None = None  # why it breaks the rules of the API


def user_text(text: str) -> Message:
    return Message("user", dump([{"type": "text", "text": text}]))


def dump(value: object) -> str:
    """Compact JSON. Lone surrogates, which UTF-8 can't carry, become U+FFFD."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


@lru_cache(maxsize=256)  # the same answer is read when it is planned and when it is read back
def read_turn(content_json: str) -> Turn:
    """Take an answer's content apart. Never raises: what can't be read is a `Turn` with a ``problem``."""
    try:
        blocks = json.loads(content_json)
    except (ValueError, RecursionError) as error:
        return Turn("", (), None, f"content is no JSON: {error}")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return Turn("", (), None, "content is no array of blocks")
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    if problem := _problem(uses):
        return Turn(_text(blocks), (), None, problem)
    return Turn(
        text=_text(blocks),
        tool_uses=tuple(ToolUse(use["id"], use["name"], dump(use.get("input"))) for use in uses),
        rendered=_render(blocks, content_json),
    )


def _problem(uses: Sequence[dict[str, Any]]) -> str | None:
    for use in uses:
        if not all(isinstance(use.get(key), str) and use[key] for key in ("id", "name")):
            return "a tool_use has no id or no name"
    ids = [use["id"] for use in uses]
    twice = sorted({id_ for id_ in ids if ids.count(id_) > 1})
    return f"tool_use ids occur twice in one turn: {', '.join(twice)[:200]}" if twice else None


def _text(blocks: Sequence[dict[str, Any]]) -> str:
    return "".join(block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str))


def _render(blocks: list[dict[str, Any]], content_json: str) -> Message | None:
    kept = [_sendable_block(block) for block in blocks if not _blank(block)]
    if not kept:
        return None
    unchanged = len(kept) == len(blocks) and all(new is old for new, old in zip(kept, blocks, strict=True))
    return Message("assistant", content_json if unchanged else dump(kept))


def _blank(block: dict[str, Any]) -> bool:
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _sendable_block(block: dict[str, Any]) -> dict[str, Any]:
    if block.get("type") != "tool_use" or sendable_input(block.get("input")):
        return block
    return {**block, "input": {"invalid_input": dump(block.get("input"))}}


def sendable_input(value: object) -> bool:
    """Whether a tool input can be sent back as it is: a JSON object of finite numbers."""
    return isinstance(value, dict) and _finite(value)


def _finite(value: object) -> bool:
    waiting = [value]  # a loop, not recursion: inputs may be nested as deep as their sender likes
    while waiting:
        match waiting.pop():
            case float() as number if not isfinite(number):
                return False
            case dict() as children:
                waiting.extend(children.values())
            case list() as items:
                waiting.extend(items)
    return True


def tool_results(results: Sequence[tuple[str, str, bool]]) -> Message:
    """The one user message that answers a turn: (tool_use id, content as JSON, is_error) each."""
    blocks = (
        f'{{"type":"tool_result","tool_use_id":{dump(id_)},"content":{content_json}{_ERROR if is_error else ""}}}'
        for id_, content_json, is_error in results
    )
    return Message("user", f"[{','.join(blocks)}]")


_ERROR = ',"is_error":true'


def extend_digest(digest: str, message: Message) -> str:
    """The digest of a prefix with one more message: a chain, so that a step costs what the step adds."""
    return sha256(f"{digest}\n{message.role}\n{message.content_json}".encode("utf-8", "replace")).hexdigest()
