"""Values a test needs but does not care about."""

import json
from typing import Any

from runfold.core.conversation import Message
from runfold.ports import ModelRequest


def model_request(*contents: str | list[Any], **fields: Any) -> ModelRequest:
    """A request whose messages have ``contents``, user and assistant by turns (default: the user says "go").

    ``fields`` replace those of `ModelRequest`."""
    values: dict[str, Any] = {
        "run_id": "00000000-0000-4000-8000-000000000000",
        "seq": 1,
        "attempt": 1,
        "model": "claude-scripted",
        "max_tokens": 1024,
        "system_json": "[]",
        "tools_json": "[]",
        "options_json": "{}",
        "messages": tuple(_message(index, content) for index, content in enumerate(contents or ("go",))),
    }
    return ModelRequest(**{**values, **fields})


def _message(index: int, content: str | list[Any]) -> Message:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return Message(role=("user", "assistant")[index % 2], content_json=json.dumps(blocks))
