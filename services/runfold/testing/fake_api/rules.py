"""What a conversation must be for the fake to answer it: as strict as the Messages API, and stricter where
laxness makes models worse.

Each rule is a generator of complaints about a request body whose JSON is sound.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from runfold.testing.fake_api import markers

Body = dict[str, Any]
Message = dict[str, Any]

_RETIRED = ("temperature", "top_p", "top_k")


def complaints(body: Body, *, paused: Sequence[bool] = (), unique_ids: bool = True) -> Iterator[str]:
    """Everything that is wrong with ``body``, the first complaint being the one to look at.

    ``paused`` says for each assistant message whether it is a paused answer, which may be continued as it stands. Ids of tool
    calls are unique in the conversation, or, without ``unique_ids``, in their message.
    """
    yield from _fields(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "messages: expected a list with at least one message"
        return
    malformed = [complaint for index, message in enumerate(messages) for complaint in _message(index, message)]
    yield from malformed
    if malformed:
        return  # the other rules read the blocks
    yield from _roles(messages, paused)
    yield from _tool_results(messages)
    yield from _tool_use_ids(messages, unique_ids)
    yield from markers.complaints(body)


def _fields(body: Body) -> Iterator[str]:
    if not isinstance(body.get("model"), str):
        yield "model: expected a string"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] <= 0:
        yield f"max_tokens: expected a positive integer, got {body.get('max_tokens')!r}"
    yield from (f"{name}: not supported by this API version" for name in _RETIRED if name in body)


def _message(index: int, message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or message.keys() != {"role", "content"}:
        yield f"messages.{index}: expected exactly role and content"
        return
    if message["role"] not in ("user", "assistant"):
        yield f"messages.{index}.role: expected user or assistant, got {message['role']!r}"
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        yield f"messages.{index}.content: must not be empty"
        return
    for at, block in enumerate(content):
        yield from (f"messages.{index}.content.{at}: {complaint}" for complaint in _block(block))


def _block(block: Any) -> Iterator[str]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        yield "expected an object with a type"
    elif block["type"] == "text" and not (isinstance(block.get("text"), str) and block["text"].strip()):
        yield "text content blocks must be non-empty"
    elif block["type"] == "tool_use" and not isinstance(block.get("input"), dict):
        yield "tool_use.input: expected an object"
    elif block["type"] == "tool_result" and isinstance(block.get("content"), list):
        for nested in block["content"]:
            yield from _block(nested)


def _roles(messages: list[Message], paused: Sequence[bool]) -> Iterator[str]:
    if messages[0]["role"] != "user":
        yield "messages.0: the first message must be the user's"
    pauses = iter(paused)
    was_paused = False
    for index, message in enumerate(messages):
        if index and message["role"] == messages[index - 1]["role"] and not (message["role"] == "assistant" and was_paused):
            yield f"messages.{index}: roles must alternate"
        if message["role"] == "assistant":
            was_paused = next(pauses, False)
    if messages[-1]["role"] == "assistant" and not was_paused:
        yield "messages: the conversation must end with a user message"


def _tool_results(messages: list[Message]) -> Iterator[str]:
    """Every tool_use has exactly one tool_result in the very next message, before every other block there."""
    due: Counter[str] = Counter()
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        results = [block for block in blocks if block["type"] == "tool_result"]
        answered = Counter(str(block.get("tool_use_id")) for block in results)
        for tool_use_id in due.keys() - answered.keys():
            yield f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {tool_use_id}"
        for tool_use_id in answered.keys() - due.keys():
            yield f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {tool_use_id}"
        yield from (f"messages.{index}: each tool_use must have a single result: {name}" for name, n in answered.items() if n > 1)
        if results and any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            yield f"messages.{index}: tool_result blocks must come before every other block"
        due = Counter(block["id"] for block in blocks if block["type"] == "tool_use")
    yield from (f"messages: `tool_use` {tool_use_id} without a result" for tool_use_id in due)


def _tool_use_ids(messages: list[Message], unique_ids: bool) -> Iterator[str]:
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if not unique_ids:
            seen.clear()
        for block in _blocks(message):
            if block["type"] == "tool_use":
                if block["id"] in seen:
                    yield f"messages.{index}: `tool_use` ids must be unique: {block['id']}"
                seen.add(block["id"])


def thinking(message: Message) -> list[Any]:
    """The blocks of a message that must come back as they were sent."""
    return [block for block in _blocks(message) if block["type"] in ("thinking", "redacted_thinking")]


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []
