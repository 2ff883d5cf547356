"""The events of a streamed answer, as the Messages API sends them: for scripts that need to say exactly what is on the wire."""

import json
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]

PING: Event = {"type": "ping"}
_PIECES = 3  # text arrives in so many deltas, or one a character


def message_start(
    *, model: str = "claude-scripted", usage: dict[str, Any] | None = None, message_id: str = "msg_scripted"
) -> Event:
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage or {"input_tokens": 10, "output_tokens": 1},
    }
    return {"type": "message_start", "message": message}


def block_start(index: int, block: dict[str, Any]) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def text_start(index: int = 0) -> Event:
    return block_start(index, {"type": "text", "text": ""})


def tool_use_start(index: int, tool_use_id: str, name: str) -> Event:
    return block_start(index, {"type": "tool_use", "id": tool_use_id, "name": name, "input": {}})


def delta(index: int, kind: str, **value: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **value}}


def text_delta(text: str, index: int = 0) -> Event:
    return delta(index, "text_delta", text=text)


def input_delta(partial_json: str, index: int = 0) -> Event:
    return delta(index, "input_json_delta", partial_json=partial_json)


def block_stop(index: int = 0) -> Event:
    return {"type": "content_block_stop", "index": index}


def message_delta(stop_reason: str | None, usage: dict[str, Any] | None = None, **fields: Any) -> Event:
    """``usage`` is the total so far, not what came since the last report."""
    change = {"stop_reason": stop_reason, "stop_sequence": None, **fields}
    return {"type": "message_delta", "delta": change, "usage": usage or {"output_tokens": 5}}


def message_stop() -> Event:
    return {"type": "message_stop"}


def error_event(error_type: str, message: str = "scripted") -> Event:
    return {"type": "error", "error": {"type": error_type, "message": message}}


def message_events(message: dict[str, Any]) -> Iterator[Event]:
    """A whole message as a stream: with a ping after the first block has begun, text in several pieces.

    A block may hold ``partial_json`` instead of ``input``: text that is sent as its input as it stands, JSON or not.
    """
    usage = message["usage"]
    yield message_start(
        model=message["model"], message_id=message["id"], usage={**usage, "output_tokens": min(1, usage.get("output_tokens", 0))}
    )
    for index, block in enumerate(message["content"]):
        start, *rest = block_events(index, block)
        yield start
        if index == 0:
            yield PING
        yield from rest
    extra = {"stop_details": message["stop_details"]} if "stop_details" in message else {}
    yield message_delta(message["stop_reason"], usage, **extra)
    yield message_stop()


def block_events(index: int, block: dict[str, Any]) -> Iterator[Event]:
    match block["type"]:
        case "text":
            yield block_start(index, {**_without(block, "citations"), "text": ""})
            yield from (text_delta(piece, index) for piece in _pieces(block["text"]))
            yield from (delta(index, "citations_delta", citation=citation) for citation in block.get("citations") or [])
        case "thinking":
            yield block_start(index, {**block, "thinking": "", "signature": ""})
            yield from (delta(index, "thinking_delta", thinking=piece) for piece in _pieces(block["thinking"]))
            yield delta(index, "signature_delta", signature=block["signature"])
        case _ if "input" in block or "partial_json" in block:
            text = block["partial_json"] if "partial_json" in block else json.dumps(block["input"])
            yield block_start(index, {**_without(block, "partial_json"), "input": {}})
            yield from (input_delta(piece, index) for piece in ["", *_pieces(text)])
        case _:
            yield block_start(index, block)
    yield block_stop(index)


def _without(block: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != field}


def _pieces(text: str) -> list[str]:
    size = max(1, -(-len(text) // _PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]
