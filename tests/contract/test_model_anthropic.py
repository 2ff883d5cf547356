"""The Anthropic adapter over a real socket: what only the wire can show."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runfold.core.errors import ConfigError, ModelFailure
from runfold.core.events import Reason
from runfold.model import Backoff, Retrying, RetryPolicy, TimeLimited
from runfold.model.anthropic import AnthropicModel
from runfold.testing import FakeMessagesApi, RecordingSleeper, Script, model_request, sse
from tests.cases.harness_processes import slowness


@asynccontextmanager
async def calling(
    script: Script, *, first_byte: float = 5, idle: float = 5, key: str = "test"
) -> AsyncIterator[tuple[FakeMessagesApi, TimeLimited]]:
    async with FakeMessagesApi(script) as api:
        model = AnthropicModel(api_key=key, base_url=api.url)
        try:
            yield api, TimeLimited(model, first_byte=first_byte, idle=idle)
        finally:
            await model.close()


async def failure_of(script: Script, key: str = "test") -> ModelFailure:
    """How the first call of ``script`` fails; the model is called once and once only."""
    async with calling(script, key=key) as (api, model):
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
        assert api.hits() == 1
    return caught.value


# ---- the request


async def test_the_request_holds_the_frozen_definition_and_the_conversation() -> None:
    system = [{"type": "text", "text": "Be brief — always."}]
    tools = [{"name": "search", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}]
    options = {"thinking": {"type": "adaptive"}, "tool_choice": {"type": "auto"}, "extra_body": {"newer": 1}}
    said = [{"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "ü", "n": 10**30, "x": 0.1}}]
    result = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}]
    script = Script().then_tool_use("toolu_1", "search", {}).then_text("42")
    async with calling(script) as (api, model):
        await model.complete(
            model_request(
                "go", said, result,
                system_json=json.dumps(system), tools_json=json.dumps(tools), options_json=json.dumps(options), max_tokens=77,
            )
        )  # fmt: skip
    assert not api.violations
    assert api.requests[0].body == {
        "model": "claude-scripted",
        "max_tokens": 77,
        "stream": True,
        "system": system,
        "tools": tools,
        "thinking": {"type": "adaptive"},
        "tool_choice": {"type": "auto"},
        "newer": 1,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": said},
            {"role": "user", "content": result},
        ],
    }


async def test_what_the_agent_does_not_define_is_left_out() -> None:
    async with calling(Script().then_text("hi")) as (api, model):
        await model.complete(model_request())
    assert api.requests[0].body.keys() == {"model", "max_tokens", "messages", "stream"}


async def test_half_a_surrogate_pair_is_sent_as_a_replacement_character() -> None:
    async with calling(Script().then_text("hi")) as (api, model):
        await model.complete(model_request("a \ud83d b \U0001f44b"))
    assert api.requests[0].body["messages"][0]["content"][0]["text"] == "a \ufffd b \U0001f44b"


@pytest.mark.parametrize("max_tokens", [32_000, 128_000])
async def test_a07_1_large_max_tokens_is_sent(max_tokens: int) -> None:
    async with calling(Script().then_text("hi")) as (api, model):
        await model.complete(model_request(max_tokens=max_tokens))
    assert api.requests[0].body["max_tokens"] == max_tokens


@pytest.mark.parametrize(
    "options", ['{"temperature": 1}', '{"max_tokens": 1}', '{"stream": false}', '{"metadata": NaN}', "[]", '{"x'], ids=str
)
async def test_a07_2_a_request_that_cannot_be_made_is_a_config_failure_without_a_hit(options: str) -> None:
    async with calling(Script().then_text("hi")) as (api, model):
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request(options_json=options))
        assert api.hits() == 0
    assert (caught.value.reason, caught.value.retryable) == (Reason.CONFIG, False)


@pytest.mark.parametrize("base_url", ["nonsense", "ftp://127.0.0.1"])
async def test_a_base_url_that_is_none_is_a_config_failure(base_url: str) -> None:
    model = AnthropicModel(api_key="test", base_url=base_url)
    with pytest.raises(ModelFailure) as caught:
        await model.complete(model_request())
    await model.close()
    assert (caught.value.reason, caught.value.retryable) == (Reason.CONFIG, False)


async def test_no_credentials_are_found_before_any_run_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicModel()


# ---- refusals


async def test_a01_v2_the_server_cannot_talk_us_into_repeating_a_400() -> None:
    failure = await failure_of(Script().then_fail(400, headers={"x-should-retry": "true"}))
    assert (failure.reason, failure.retryable) == (Reason.MODEL_REQUEST, False)


async def test_a01_2_a_failure_tells_what_came_without_key_material() -> None:
    key = "gateway-key-without-a-known-shape"
    message = f"{key} sk-ant-api03-abc_DEF-123 was refused, Authorization: Bearer abcdef.ghi " + "x" * 1000
    failure = await failure_of(Script().then_fail(401, message), key=key)
    assert failure.http_status == 401
    assert failure.error_type == "authentication_error"
    assert failure.request_id == "req_1"
    assert failure.message.startswith("[redacted] [redacted] was refused, Authorization: Bearer [redacted] xxx")
    assert len(failure.message) == 500


@pytest.mark.parametrize(
    "body", ["<!doctype html>\n\n<p>content</p>", '{"type":"message"}', "", "data: hello\n\n", "data: [1]\n\n"]
)
async def test_a_200_that_is_no_stream_may_pass(body: str) -> None:
    failure = await failure_of(Script().then_fail(200, body=body))
    assert (failure.reason, failure.retryable) == (Reason.API_ERROR, True)


@pytest.mark.parametrize("body", ["<html>Bad gateway</html>", ""])
async def test_an_error_page_of_a_gateway_is_judged_by_its_status(body: str) -> None:
    failure = await failure_of(Script().then_fail(502, body=body))
    assert (failure.reason, failure.retryable, failure.http_status) == (Reason.API_ERROR, True, 502)


async def test_nobody_listening_is_a_lost_connection() -> None:
    async with FakeMessagesApi(Script()) as api:
        url = api.url
    model = AnthropicModel(api_key="test", base_url=url)
    with pytest.raises(ModelFailure) as caught:
        await model.complete(model_request())
    await model.close()
    assert (caught.value.reason, caught.value.retryable) == (Reason.CONNECTION, True)


# ---- clocks


@pytest.mark.parametrize(
    "script",
    [
        Script().then_sse("hang"),
        Script().then_ping(every=0.05),
        Script().then_sse(sse.PING, "hang"),
        Script().then_sse(sse.message_start(), sse.text_start(), sse.text_delta("Hel"), "hang"),
        Script().then_hang(),
    ],
    ids=["(a) headers, then nothing", "(b) pings only", "one ping", "stalled", "(d) no answer"],
)
async def test_a05_1_a_stream_without_content_is_given_up_and_its_connection_closed(script: Script) -> None:
    async with calling(script, first_byte=0.4, idle=0.4) as (api, model):
        began = time.monotonic()
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
        assert 0.35 < time.monotonic() - began < 3 * slowness()
        await api.until(lambda: api.requests[0].aborted)
    assert (caught.value.reason, caught.value.retryable) == (Reason.MODEL_TIMEOUT, True)


async def test_a05_2_a_slow_answer_is_waited_for() -> None:
    """Slower as a whole than either clock, never silent for as long."""
    deltas = [item for _ in range(22) for item in (0.1, sse.text_delta("x"))]
    script = Script().then_sse(
        sse.message_start(), sse.text_start(), *deltas, sse.block_stop(), sse.message_delta("end_turn"), sse.message_stop()
    )
    async with calling(script, first_byte=2, idle=2) as (api, model):
        answer = await model.complete(model_request())
    assert json.loads(answer.content_json)[0]["text"] == "x" * 22
    assert api.hits() == 1


async def test_headers_are_no_sign_of_life() -> None:
    async with calling(Script().then_sse("hang"), first_byte=0.1) as (_, model):
        with pytest.raises(ModelFailure, match=r"no byte of an answer for 0\.1 s"):
            await model.complete(model_request())


async def test_a_server_that_thinks_long_needs_only_the_idle_clock() -> None:
    """Once there is a sign of life, the clock for the first byte means nothing."""
    script = Script().then_sse(sse.message_start(), 2.1, sse.message_delta("end_turn"), sse.message_stop())
    async with calling(script, first_byte=2, idle=20) as (_, model):
        await model.complete(model_request())


async def test_a_timeout_tells_what_was_wasted() -> None:
    script = Script().then_sse(sse.message_start(usage={"input_tokens": 25, "output_tokens": 1}), "hang")
    async with calling(script, idle=0.1) as (_, model):
        with pytest.raises(ModelFailure) as caught:
            await model.complete(model_request())
    assert caught.value.usage is not None
    assert caught.value.usage.input_tokens == 25
    assert caught.value.request_id == "req_1"


@pytest.mark.parametrize(
    "script",
    [Script().then_hang(), Script().then_sse("hang"), Script().then_ping(every=0.02)],
    ids=["no answer", "headers", "pings"],
)
async def test_a05_3_the_server_sees_a_cancelled_call_go_at_once(script: Script) -> None:
    async with calling(script) as (api, model):
        call = asyncio.create_task(model.complete(model_request()))
        await api.until_hits(1)
        call.cancel()
        async with asyncio.timeout(4):  # a clock would end it after 5 s
            with pytest.raises(asyncio.CancelledError):
                await call
            await api.until(lambda: api.requests[0].aborted)


@pytest.mark.parametrize(
    "event", [sse.delta(0, "hologram_delta"), sse.error_event("overloaded_error")], ids=["unknown delta", "error"]
)
async def test_a_stream_we_have_heard_enough_of_is_closed_from_our_side(event: sse.Event) -> None:
    async with calling(Script().then_sse(sse.message_start(), sse.text_start(), event, "hang")) as (api, model):
        with pytest.raises(ModelFailure):
            await model.complete(model_request())
        await api.until(lambda: api.requests[0].aborted)


async def test_a_broken_call_leaves_nothing_behind() -> None:
    broken = Script().then_sse(sse.message_start(), sse.delta(0, "text_delta", text="x"), "hang").then_fail(529).then_reset()
    async with calling(broken) as (api, model):
        for _ in range(3):
            with pytest.raises(ModelFailure):
                await model.complete(model_request())
        await api.until(lambda: api.requests[0].aborted)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_whole_answers_share_a_connection() -> None:
    async with calling(Script().then_text("hi")) as (api, model):
        for _ in range(3):
            await model.complete(model_request())
        assert api.connections == 1


# ---- retries


async def retried(script: Script, attempts: int = 3) -> tuple[int, list[float], ModelFailure | None]:
    """(hits, sleeps, the final failure) of a call with retries. The jitter draws 0: waits are what the server asked for."""
    sleeper = RecordingSleeper()
    backoff = Backoff(attempts=attempts, base=1, cap=60)
    policy = RetryPolicy(overloads=backoff, mishaps=backoff, retry_after_cap=600)
    async with calling(script) as (api, model):
        try:
            await Retrying(model, policy, sleep=sleeper, draw=lambda: 0.0).complete(model_request())
            failure = None
        except ModelFailure as error:
            failure = error
        return api.hits(), sleeper.slept, failure


async def test_two_429_with_retry_after_then_success_is_three_calls_and_two_long_sleeps() -> None:
    script = Script().then_fail(429, retry_after=7).then_fail(429, retry_after=7).then_text("hi")
    hits, slept, failure = await retried(script)
    assert failure is None
    assert hits == 3
    assert len(slept) == 2
    assert all(seconds >= 7 for seconds in slept)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a01_1_what_a_retry_cannot_cure_is_asked_once(status: int) -> None:
    hits, slept, failure = await retried(Script().then_fail(status, retry_after=1))
    assert (hits, slept) == (1, [])
    assert failure is not None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script().then_fail(500), Reason.API_ERROR),
        (Script().then_fail(529), Reason.OVERLOADED),
        (Script().then_reset(), Reason.CONNECTION),
        (Script().then_sse(sse.message_start(), sse.error_event("overloaded_error")), Reason.OVERLOADED),
    ],
    ids=["500", "529", "reset", "A04.3 overload in a stream"],
)
async def test_a02_retries_do_not_multiply(script: Script, reason: Reason) -> None:
    hits, slept, failure = await retried(script)
    assert hits == 3
    assert len(slept) == 2
    assert failure is not None
    assert failure.reason == reason
