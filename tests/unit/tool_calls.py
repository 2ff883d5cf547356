"""How these tests call a tool: through the executor, as the worker does, with the model's JSON text as input."""

import json
from typing import Any

from runfold.ports import ToolCallRequest, ToolResult
from runfold.tools import Executor, Registry, Threads, Tool


def executor(*tools: Tool[..., Any]) -> Executor:
    return Executor(Registry(tools), Threads())


def request(name: str, input_json: str = "{}", *, tool_use_id: str = "toolu_1", model_seq: int = 1) -> ToolCallRequest:
    key = f"run-1/{model_seq}/{tool_use_id}"
    return ToolCallRequest("run-1", model_seq + 1, model_seq, tool_use_id, name, input_json, key, 1)


async def call(tool: Tool[..., Any], input_json: str = "{}") -> ToolResult:
    return await executor(tool).call(request(tool.name, input_json))


def text(result: ToolResult) -> str:
    """What the model reads. Fails unless the content is a non-blank JSON string that UTF-8 can hold."""
    result.content_json.encode()
    content = json.loads(result.content_json)
    assert isinstance(content, str)
    assert content.strip()
    return content
