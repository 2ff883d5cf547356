"""What every model owes its callers (`runfold.ports.Model`), in process and through the real SDK over HTTP alike."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason, Usage
from runfold.model import ScriptedModel, TimeLimited
from runfold.model.anthropic import AnthropicModel
from runfold.ports import Model
from runfold.testing import FakeMessagesApi, Script, ScriptedStream, model_request, sse

Playing = Callable[[Script], AbstractAsyncContextManager[Model]]


@asynccontextmanager
async def in_process(script: Script) -> AsyncIterator[Model]:
    yield ScriptedModel(ScriptedStream(script).complete)


@asynccontextmanager
async def over_http(script: Script) -> AsyncIterator[Model]:
    async with FakeMessagesApi(script) as api:
        model = AnthropicModel(api_key="test", base_url=api.url)
        try:
            yield TimeLimited(model, first_byte=5, idle=5)
            assert not api.violations
        finally:
            await model.close()


@pytest.fixture(params=[in_process, over_http])
def playing(request: pytest.FixtureRequest) -> Playing:
    play: Playing = request.param
    return play


async def test_an_answer_holds_all_that_was_said(playing: Playing) -> None:
    usage = {
        "input_tokens": 3,
        "output_tokens": 550,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    }
    tool_input = {"q": "ä", "n": 12345678901234567890, "x": [1.5, None, {}]}
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm…", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eHl6"},
        {"type": "text", "text": "Schöne Grüße 👋\u0000 und \"mehr\""},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": tool_input},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
        {"type": "brand_new", "payload": {"deep": [1, 2]}},
    ]
    async with playing(Script().then_message(content, "tool_use", usage, model="claude-other")) as model:
        answer = await model.complete(model_request())
    assert json.loads(answer.content_json) == content
    assert answer.stop_reason == "tool_use"
    assert answer.usage == Usage(
        input_tokens=3, output_tokens=550, cache_write_5m_tokens=10, cache_write_1h_tokens=20, cache_read_tokens=7
    )
    assert answer.model == "claude-other"
    assert answer.message_id == "msg_1"
    assert answer.request_id == "req_1"


async def test_the_text_is_heard_in_order_while_it_arrives_and_nothing_else_is(playing: Playing) -> None:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm…", "signature": "c2ln"},
        {"type": "text", "text": "Schöne Grüße 👋"},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "x"}},
        {"type": "text", "text": " und mehr"},
    ]
    heard: list[str] = []
    async with playing(Script().then_message(content, "tool_use")) as model:
        await model.complete(model_request(heard=heard.append))
    assert "".join(heard) == "Schöne Grüße 👋 und mehr"
    assert len(heard) > 2, "in pieces"


async def test_the_first_words_are_heard_of_an_answer_that_never_ends(playing: Playing) -> None:
    heard = asyncio.Queue[str]()
    async with playing(Script().then_sse(sse.message_start(), sse.text_start(), sse.text_delta("Hel"), "hang")) as model:
        call = asyncio.create_task(model.complete(model_request(heard=heard.put_nowait)))
        async with asyncio.timeout(10):
            assert await heard.get() == "Hel"
        assert not call.done()
        call.cancel()
        await asyncio.wait({call})


async def test_c06_empty_content_is_an_answer(playing: Playing) -> None:
    async with playing(Script().then_message([], "end_turn")) as model:
        answer = await model.complete(model_request())
    assert answer.content_json == "[]"


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "model_context_window_exceeded", "brand_new"])
async def test_c09_every_stop_reason_is_passed_on_as_it_came(playing: Playing, stop_reason: str) -> None:
    async with playing(Script().then_message([{"type": "text", "text": "x"}], stop_reason)) as model:
        assert (await model.complete(model_request())).stop_reason == stop_reason


async def test_c09_a_refusal_comes_with_its_details(playing: Playing) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": None}
    async with playing(Script().then_message([], "refusal", stop_details=details)) as model:
        answer = await model.complete(model_request())
    assert json.loads(answer.stop_details_json or "") == details


async def test_c07_cut_off_tool_input_is_kept_as_received_and_not_mended(playing: Playing) -> None:
    cut = '{"path":"/a","text":"abc'
    block = {"type": "tool_use", "id": "toolu_1", "name": "write", "partial_json": cut}
    async with playing(Script().then_message([block], "max_tokens")) as model:
        answer = await model.complete(model_request())
    assert json.loads(answer.content_json)[0]["input"] == cut
    assert answer.usage.total


@pytest.mark.parametrize(
    ("received", "kept"),
    [
        ('"str"', "str"),
        ("[]", []),
        ("null", None),
        ("3", 3),
        ('{"a":1', '{"a":1'),
        ('{"a":1} x', '{"a":1} x'),
        ('{"a":1,"a":2}', '{"a":1,"a":2}'),
        ('{"a":NaN}', '{"a":NaN}'),
        ('{"a":1e400}', '{"a":1e400}'),
        ('{"__proto__":1}', {"__proto__": 1}),
        ("[" * 100_000, "[" * 100_000),
        ('{"half":"\\ud83d"}', {"half": "\ud83d"}),
        ('{"whole":"\\ud83d\\udc4b"}', {"whole": "👋"}),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "backslashreplace").decode(),
)
async def test_t06_tool_input_of_any_shape_is_kept(playing: Playing, received: str, kept: object) -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "t", "partial_json": received}
    async with playing(Script().then_message([block], "tool_use")) as model:
        answer = await model.complete(model_request())
    answer.content_json.encode()
    assert json.loads(answer.content_json)[0]["input"] == kept


@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [
        (400, Reason.MODEL_REQUEST, False),
        (413, Reason.MODEL_REQUEST, False),
        (422, Reason.MODEL_REQUEST, False),
        (401, Reason.MODEL_ACCESS, False),
        (402, Reason.MODEL_ACCESS, False),
        (403, Reason.MODEL_ACCESS, False),
        (404, Reason.MODEL_ACCESS, False),
        (408, Reason.API_ERROR, True),
        (409, Reason.API_ERROR, True),
        (429, Reason.RATE_LIMITED, True),
        (500, Reason.API_ERROR, True),
        (502, Reason.API_ERROR, True),
        (503, Reason.API_ERROR, True),
        (504, Reason.API_ERROR, True),
        (529, Reason.OVERLOADED, True),
    ],
)
async def test_a01_a_status_says_whether_to_try_again(playing: Playing, status: int, reason: Reason, retryable: bool) -> None:
    async with playing(Script().then_fail(status, "no", retry_after=7)) as model:
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
    failure = caught.value
    assert (failure.reason, failure.retryable, failure.http_status) == (reason, retryable, status)
    assert failure.message == "no"
    assert failure.error_type
    assert failure.retry_after == 7


async def test_a04_overload_inside_a_stream_is_overload_and_says_what_was_wasted(playing: Playing) -> None:
    start = sse.message_start(usage={"input_tokens": 25, "output_tokens": 1})
    script = Script().then_sse(start, sse.text_start(), sse.text_delta("Hel"), sse.error_event("overloaded_error"))
    async with playing(script.then_text("Hello")) as model:
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
        assert (await model.complete(model_request())).content_json == '[{"type":"text","text":"Hello"}]'
    assert (caught.value.reason, caught.value.retryable) == (Reason.OVERLOADED, True)
    assert caught.value.usage == Usage(input_tokens=25, output_tokens=1)


async def test_a04_a_refusal_inside_a_stream_is_final(playing: Playing) -> None:
    async with playing(Script().then_sse(sse.message_start(), sse.error_event("invalid_request_error"))) as model:
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
    assert (caught.value.reason, caught.value.retryable) == (Reason.MODEL_REQUEST, False)


_WHOLE = [
    sse.message_start(),
    sse.text_start(),
    sse.text_delta("Hi"),
    sse.block_stop(),
    sse.message_delta("end_turn"),
    sse.message_stop(),
]


@pytest.mark.parametrize("kept", range(len(_WHOLE)))
async def test_a_stream_that_ends_early_is_no_answer(playing: Playing, kept: int) -> None:
    """A clean end of the connection after any event but the last."""
    async with playing(Script().then_sse(*_WHOLE[:kept])) as model:
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
    assert (caught.value.reason, caught.value.retryable) == (Reason.CONNECTION, True)


@pytest.mark.parametrize("missing", [3, 4])
async def test_a_stream_that_ends_without_having_closed_everything_is_no_answer(playing: Playing, missing: int) -> None:
    async with playing(Script().then_sse(*_WHOLE[:missing], *_WHOLE[missing + 1 :])) as model:
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
    assert caught.value.reason == Reason.CONNECTION


async def test_a_reset_is_a_lost_connection(playing: Playing) -> None:
    script = Script().then_reset().then_sse(sse.message_start(), sse.PING, "reset")
    async with playing(script) as model:
        for _ in range(2):
            with pytest.raises(ModelFailure) as caught:
                await model.complete(model_request())
            assert (caught.value.reason, caught.value.retryable) == (Reason.CONNECTION, True)


async def test_a_delta_this_build_cannot_store_is_refused(playing: Playing) -> None:
    unknown = sse.delta(0, "hologram_delta", hologram="…")
    async with playing(Script().then_sse(sse.message_start(), sse.text_start(), unknown, *_WHOLE[3:])) as model:
        with pytest.raises(ModelFailure, match="hologram_delta") as caught:
            await model.complete(model_request())
    assert (caught.value.reason, caught.value.retryable) == (Reason.UNSUPPORTED_RESPONSE, False)


async def test_an_event_this_build_does_not_know_is_passed_over(playing: Playing) -> None:
    async with playing(Script().then_sse(*_WHOLE[:2], {"type": "weather"}, *_WHOLE[2:])) as model:
        assert (await model.complete(model_request())).content_json == '[{"type":"text","text":"Hi"}]'


@pytest.mark.parametrize(
    "usages",
    [
        [{"input_tokens": 25, "cache_read_input_tokens": 1000, "output_tokens": 9}, {"output_tokens": 15}],
        [{"output_tokens": 15}],
        [{"output_tokens": 15, "input_tokens": None}],
    ],
)
async def test_b07_reports_of_usage_are_totals(playing: Playing, usages: list[dict[str, int]]) -> None:
    start = sse.message_start(usage={"input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 1000})
    deltas = [sse.message_delta("end_turn", usage) for usage in usages]
    async with playing(Script().then_sse(start, *deltas, sse.message_stop())) as model:
        answer = await model.complete(model_request())
    assert answer.usage == Usage(input_tokens=25, output_tokens=15, cache_read_tokens=1000)


async def test_a_cancelled_call_ends_at_once_and_leaves_the_model_usable(playing: Playing) -> None:
    heard, beginning = asyncio.Event(), (sse.message_start(), sse.text_start(), sse.text_delta("Hel"))
    async with playing(Script().then_sse(*beginning, "hang").then_text("there")) as model:
        call = asyncio.create_task(model.complete(model_request(heard=lambda said: heard.set())))
        async with asyncio.timeout(10):
            await heard.wait()
        call.cancel()
        async with asyncio.timeout(4):  # a clock would end it after 5 s
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (await model.complete(model_request())).content_json == '[{"type":"text","text":"there"}]'
