"""The rules of ``cache_control``: how many markers there may be, on what, for how long, in which order."""

from collections.abc import Iterable, Iterator
from typing import Any

MOST = 4
_TTLS = ("5m", "1h")
_UNMARKABLE = ("thinking", "redacted_thinking")
_OWN_DATA = ("input", "input_schema")  # the user's own: what looks like a marker in there is none

Block = dict[str, Any]


def complaints(body: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the markers of a request whose blocks are sound."""
    markers = list(_markers(body))
    if len(markers) > MOST:
        yield f"a maximum of {MOST} blocks with cache_control may be provided, found {len(markers)}"
    lifetimes = []
    for where, block, marker in markers:
        yield from (f"{where}.cache_control: {complaint}" for complaint in _marker(block, marker))
        lifetimes.append(marker.get("ttl", "5m") if isinstance(marker, dict) else "5m")
    if "5m" in lifetimes and "1h" in lifetimes[lifetimes.index("5m") :]:
        yield "cache_control: a marker with ttl 1h must not come after one with ttl 5m"


def _marker(block: Block, marker: Any) -> Iterator[str]:
    if not isinstance(marker, dict) or marker.get("type") != "ephemeral" or marker.keys() - {"type", "ttl"}:
        yield f"expected type ephemeral and perhaps a ttl, got {marker!r}"
    elif marker.get("ttl", "5m") not in _TTLS:
        yield f"ttl must be one of {', '.join(_TTLS)}, got {marker['ttl']!r}"
    if block.get("type") in _UNMARKABLE:
        yield f"not on a {block['type']} block"
    if block.get("type") == "text" and not str(block.get("text", "")).strip():
        yield "not on an empty text block"


def _markers(body: dict[str, Any]) -> Iterator[tuple[str, Block, Any]]:
    """(place, block, marker), in the order in which the API caches: tools, system, messages, then the automatic one."""
    for name in ("tools", "system"):
        yield from _of_blocks(name, body.get(name))
    for index, message in enumerate(body["messages"]):
        yield from _of_blocks(f"messages.{index}.content", message["content"])
    if "cache_control" in body:
        yield "request", {}, body["cache_control"]


def _of_blocks(where: str, blocks: Any) -> Iterator[tuple[str, Block, Any]]:
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            if block.get("type") == "tool_result":
                yield from _of_blocks(f"{where}.{index}.content", block.get("content"))
            if "cache_control" in block:
                yield f"{where}.{index}", block, block["cache_control"]


def unmarked(value: Any) -> Any:
    """The same without markers: what the model sees, and what must not change from one request to the next."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if isinstance(value, dict):
        return {name: item if name in _OWN_DATA else unmarked(item) for name, item in value.items() if name != "cache_control"}
    return value


def blocks_of(body: dict[str, Any]) -> Iterable[Block]:
    """Tools, system and message blocks in the order of the cache, each with its own marker if it has one."""
    for part in (body.get("tools"), body.get("system"), *(message["content"] for message in body["messages"])):
        yield from ([{"type": "text", "text": part}] if isinstance(part, str) else part or ())
