"""Markers for the API's prompt cache, put on a request as it is made.

They say nothing to the model, so they are never stored and no part of a prefix digest: where they stand changes with each call.
One on the last system block covers tools and system; one on the last block of the last user message covers the conversation. The
API takes `MOST` in all, an agent's own included, and none that asks for an hour behind one that asks for five minutes.
"""

from collections.abc import Iterator
from typing import Any

MOST = 4
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})

Block = dict[str, Any]


def mark(body: dict[str, Any], ttl: str) -> None:
    """Put markers on the blocks of ``body``, which are changed. ``ttl``: of the one on the system blocks, "5m" or "1h"; "off":
    none is put anywhere."""
    if ttl == "off":
        return
    before, after = list(_markers([*body.get("tools", ()), *body.get("system", ())])), list(_behind(body))
    left = MOST - len(before) - len(after)
    automatic = "cache_control" in body  # the API moves a marker of its own along
    if left > 0 and not automatic and _put(_last_user_block(body["messages"]), "5m"):
        left -= 1
    if left > 0 and body.get("system"):
        _put(body["system"][-1], _lifetime(ttl, before, after))


def _lifetime(ttl: str, before: list[Block], after: list[Block]) -> str:
    """As asked for, where the agent's own markers allow it."""
    if any(marker.get("ttl") == "1h" for marker in after):
        return "1h"
    return "5m" if any(marker.get("ttl", "5m") == "5m" for marker in before) else ttl


def _put(block: Block | None, ttl: str) -> bool:
    """Mark ``block``, if it is one that takes a marker and has none."""
    if block is None or "cache_control" in block or block.get("type") in _UNMARKABLE:
        return False
    if block.get("type") == "text" and not block["text"].strip():
        return False
    block["cache_control"] = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    return True


def _last_user_block(messages: list[dict[str, Any]]) -> Block | None:
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    block: Block | None = last["content"][-1] if last else None
    return block


def _behind(body: dict[str, Any]) -> Iterator[Block]:
    """An agent's own markers behind its system blocks: what its tools have put into results, and the automatic one."""
    for message in body["messages"]:
        yield from _markers(message["content"])
    if isinstance(body.get("cache_control"), dict):
        yield body["cache_control"]


def _markers(blocks: list[Any]) -> Iterator[Block]:
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if isinstance(marker := block.get("cache_control"), dict):
            yield marker
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from _markers(block["content"])
