"""Markers for the API's prompt cache, put on a request as it is made.

They say nothing to the model, so they are never stored and no part of a prefix digest: where they stand changes with each call.
One on the last system block covers tools and system; one on the last block of the last user message covers the conversation. The
API takes `MOST` in all, those of the agent's own tools and system blocks included, and none that asks for an hour behind one that
asks for five minutes. What tools have marked in their results is taken off again: it would add up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 4
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})

Block = dict[str, Any]


def own_markers(request: Mapping[str, Any]) -> list[Any]:
    """What an agent has marked itself, in the order of the cache; the automatic marker, which the API moves along, last."""
    blocks = [*request.get("tools", ()), *request.get("system", ())]
    marked = [block["cache_control"] for block in blocks if "cache_control" in block]
    return [*marked, request["cache_control"]] if "cache_control" in request else marked


def mark(body: dict[str, Any], ttl: str) -> None:
    """Put markers on the blocks of ``body``, which are changed. ``ttl``: of the one on the system blocks, "5m" or "1h"; "off":
    none is put anywhere."""
    if ttl == "off":
        return
    own, automatic = own_markers(body), body.get("cache_control")
    left = MOST - len(own)
    if left > 0 and automatic is None and _put(_last_user_block(body["messages"]), "5m"):
        left -= 1
    if left > 0 and body.get("system"):
        _put(body["system"][-1], _lifetime(ttl, own, automatic))


def unmark(blocks: Sequence[Any]) -> None:
    """Take the markers off the blocks of a message, which are changed."""
    for block in blocks:
        if isinstance(block, dict):
            block.pop("cache_control", None)
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                unmark(block["content"])


def _lifetime(ttl: str, own: Sequence[Any], automatic: Any) -> str:
    """As asked for, where the agent's own markers allow it."""
    if automatic is not None and _of(automatic) == "1h":
        return "1h"
    before = own if automatic is None else own[:-1]
    return "5m" if any(_of(marker) == "5m" for marker in before) else ttl


def _of(marker: Any) -> Any:
    return marker.get("ttl", "5m") if isinstance(marker, dict) else "5m"


def _put(block: Block | None, ttl: str) -> bool:
    """Mark ``block``, if it is one that takes a marker and has none."""
    if block is None or "cache_control" in block or block.get("type") in _UNMARKABLE:
        return False
    if block.get("type") == "text" and not block["text"].strip():
        return False
    block["cache_control"] = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    return True


def _last_user_block(messages: Sequence[dict[str, Any]]) -> Block | None:
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    block: Block | None = last["content"][-1] if last else None
    return block
