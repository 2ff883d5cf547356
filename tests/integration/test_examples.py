"""The examples do what they say; the tool that honours its key does it on a real PostgreSQL."""

import asyncio
import json
import sys
from pathlib import Path

import psycopg
import pytest

from runfold.agents import load_app
from runfold.core.events import SideEffect, ToolStatus
from runfold.model.anthropic import AnthropicModel
from runfold.ports import ToolCallRequest, ToolPolicy
from runfold.testing import model_request

EXAMPLES = Path(__file__).parents[2] / "examples"


def call(name: str, input_json: str, *, attempt: int = 1, key: str = "run-1/1/toolu_1") -> ToolCallRequest:
    return ToolCallRequest("run-1", 2, 1, "toolu_1", name, input_json, key, attempt)


async def test_tickets_is_an_agent_of_twenty_lines() -> None:
    assert len((EXAMPLES / "tickets.py").read_text().splitlines()) <= 20
    tools = load_app(f"{EXAMPLES}/tickets.py:app").tools("tickets")
    result = await tools.call(call("list_tickets", '{"customer":"acme","status":"overdue"}'))
    assert (result.status, result.content_json) == (ToolStatus.DONE, r'"[\"T-7\"]"')


async def test_the_scripted_model_asks_for_the_tool_of_the_other_example() -> None:
    command = sys.executable, str(EXAMPLES / "scripted_model.py"), "0"
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    model = AnthropicModel(api_key="none", base_url=(await process.stdout.readline()).decode().strip())
    try:
        answer = await model.complete(model_request("Which acme tickets are overdue?"))
    finally:
        await model.close()
        process.kill()
        await process.wait()
    (asked,) = [block for block in json.loads(answer.content_json) if block["type"] == "tool_use"]
    tools = load_app(f"{EXAMPLES}/tickets.py:app").tools("tickets")
    result = await tools.call(call(asked["name"], json.dumps(asked["input"])))
    assert result.status is ToolStatus.DONE


async def test_idempotent_tool_writes_once_however_often_it_runs(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O7: executions may repeat under one key, the effect may not; another key is another effect."""
    monkeypatch.setenv("TICKETS_DSN", dsn)
    tools = load_app(f"{EXAMPLES}/idempotent_tool.py").tools("refunds")
    assert tools.policy("refund") == ToolPolicy(SideEffect.WRITE, repeatable=True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sys.modules["runfold_app_idempotent_tool"].TABLE)
        arguments = '{"ticket":"T-7","cents":500}'
        calls = [call("refund", arguments, attempt=attempt) for attempt in range(1, 6)]
        calls.append(call("refund", arguments, key="run-2/1/toolu_1"))
        results = await asyncio.gather(*(tools.call(wanted) for wanted in calls))
        assert {(result.status, result.content_json) for result in results} == {(ToolStatus.DONE, '"refunded 500 cents for T-7"')}
        assert connection.execute("select idempotency_key from refund order by 1").fetchall() == [
            ("run-1/1/toolu_1",),
            ("run-2/1/toolu_1",),
        ]


async def test_idempotent_tool_tells_the_model_what_it_refuses(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKETS_DSN", dsn)
    tools = load_app(f"{EXAMPLES}/idempotent_tool.py").tools("refunds")
    result = await tools.call(call("refund", '{"ticket":"T-7","cents":0}'))
    assert (result.status, result.content_json) == (ToolStatus.ERROR, '"cents must be above 0, got 0"')
