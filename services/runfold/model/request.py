"""The body of a Messages API request, from what the log froze. Values only: order of keys and white space carry no meaning.

Nothing is rendered here. System blocks, tools, options and messages go out with the values that the log's prefix digest covers;
what is added is what the API does not hold against a replay: max_tokens, stream, and markers for its cache.
"""

from typing import Any

from runfold.model.caching import mark, unmark
from runfold.model.exact_json import sendable
from runfold.ports import ModelRequest


def _blocks(content_json: str) -> Any:
    blocks = sendable(content_json)
    if '"cache_control"' in content_json:  # nearly none
        unmark(blocks)
    return blocks


def arguments(request: ModelRequest) -> dict[str, Any]:
    """Keyword arguments for the SDK's ``messages.create``. The agent's options are such arguments too, ``extra_headers`` and
    ``extra_body`` included, but cannot replace one of ours: ``TypeError``."""
    ours: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": [{"role": message.role, "content": _blocks(message.content_json)} for message in request.messages],
        "stream": True,
    }
    # An empty list and an absent field mean the same to the model, but only the latter is always accepted.
    for name, text in (("system", request.system_json), ("tools", request.tools_json)):
        if value := sendable(text):
            ours[name] = value
    options: dict[str, Any] = sendable(request.options_json)
    if taken := sorted(ours.keys() & options.keys()):
        raise TypeError(f"options may not hold {', '.join(taken)}: the agent's definition has a field for that")
    body = ours | options
    mark(body, request.cache_ttl)
    return body
