"""docs/model-providers.md: the provider on the page is a whole one."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from runfold.core.decisions import RunTools
from runfold.core.errors import ModelFailure
from runfold.core.events import Reason, Usage
from runfold.ports import Model
from runfold.testing import given, model_request

PAGE = Path(__file__).parents[2] / "docs" / "model-providers.md"


def provider(answer: httpx.Response | Exception) -> tuple[Model, list[dict[str, Any]]]:
    """The class on the page, before an API that gives one answer; what it was asked."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    asked: list[dict[str, Any]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = httpx.AsyncClient(transport=httpx.MockTransport(serve), base_url="http://chat")
    return names["ChatModel"](client), asked


async def test_its_answers_carry_a_run_on() -> None:
    said = {"text": "I look", "calls": [{"name": "find", "arguments": {"n": 1}}], "tokens": [12, 3]}
    model, asked = provider(httpx.Response(200, json=said))
    answer = await model.complete(model_request("go", max_tokens=77))
    assert asked == [
        {
            "model": "claude-scripted",
            "limit": 77,
            "tools": [],
            "turns": [{"from": "user", "blocks": [{"type": "text", "text": "go"}]}],
        }
    ]
    assert answer.usage == Usage(input_tokens=12, output_tokens=3)
    run = given().started().answers(content_json=answer.content_json, stop_reason=answer.stop_reason)
    (decision, *_) = run.decisions()
    assert isinstance(decision, RunTools)
    assert [(call.name, call.input_json) for call in decision.calls] == [("find", '{"n":1}')]


@pytest.mark.parametrize(
    ("answer", "reason", "again"),
    [
        (httpx.Response(529, text="busy"), Reason.OVERLOADED, True),
        (httpx.Response(401, text="who?"), Reason.MODEL_ACCESS, False),
        (httpx.ConnectError("refused"), Reason.CONNECTION, True),
        (httpx.Response(200, text="<html>"), Reason.API_ERROR, True),
        (httpx.Response(200, json={"text": "x"}), Reason.API_ERROR, True),
    ],
    ids=["overload", "key", "connection", "page", "shape"],
)
async def test_what_goes_wrong_is_a_model_failure(answer: httpx.Response | Exception, reason: Reason, again: bool) -> None:
    model, _ = provider(answer)
    with pytest.raises(ModelFailure) as caught:
        await model.complete(model_request())
    assert (caught.value.reason, caught.value.retryable) == (reason, again)
