"""The fake Messages API: what it refuses, what it plays, what it remembers."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from runfold.testing import NONCE, FakeMessagesApi, Script, sse

Messages = list[dict[str, Any]]

KEY = {"authorization": "Bearer test"}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(value: str = "go") -> dict[str, Any]:
    return {"type": "text", "text": value}


def tool_use(name: str = "a", value: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "t", "input": {} if value is None else value}


def result(name: str = "a", content: Any = "done") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "stream": True, "messages": list(messages), **fields}


@asynccontextmanager
async def serving(api: FakeMessagesApi) -> AsyncIterator[tuple[FakeMessagesApi, httpx.AsyncClient]]:
    async with api, httpx.AsyncClient(base_url=api.url, headers=KEY) as client:
        yield api, client


async def ask(client: httpx.AsyncClient, *messages: Any, **fields: Any) -> httpx.Response:
    return await client.post("/v1/messages", json=body(*messages or (user(text()),), **fields))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def said(response: httpx.Response) -> str:
    return "".join(event["delta"].get("text", "") for event in events(response) if event["type"] == "content_block_delta")


# ---- the rules

SHORT = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}

TALK = Script().then_text("ok").for_ever()
CALLED = (user(text()), assistant(tool_use()))

SOUND: dict[str, Messages] = {
    "one message": [user(text())],
    "content as text": [{"role": "user", "content": "go"}],
    "a call and its result": [*CALLED, user(result())],
    "two calls, results, then text": [
        user(text()),
        assistant(text("I'll"), tool_use("a"), tool_use("b")),
        user(result("a"), result("b"), text("and hurry")),
    ],
    "a result without content": [*CALLED, user({"type": "tool_result", "tool_use_id": "a"})],
    "two rounds": [*CALLED, user(result()), assistant(tool_use("b")), user(result("b"))],
    "markers where the user's own data only look like ones": [
        user(text()),
        assistant(tool_use("a", {"cache_control": [{"cache_control": 1}] * 5})),
        user(result()),
    ],
}

BROKEN: dict[str, Messages] = {
    "2 no message": [],
    "2 another role": [{"role": "system", "content": "x"}, user(text())],
    "2 assistant first": [assistant(text()), user(text())],
    "2 same role twice": [user(text()), user(text())],
    "2 assistant last": [user(text()), assistant(text())],
    "2 assistant twice": [user(text()), assistant(text()), assistant(text()), user(text())],
    "3 further fields": [{**user(text()), "id": "msg_1"}],
    "3 empty content": [user(text()), assistant(), user(text())],
    "3 empty content as text": [{"role": "user", "content": ""}],
    "3 empty text": [user(text(""))],
    "3 blank text": [user(text(" \n"))],
    "3 empty text in a result": [*CALLED, user(result(content=[text("")]))],
    "4 no result": [*CALLED, user(text())],
    "4 a result missing": [user(text()), assistant(tool_use("a"), tool_use("b")), user(result("a"))],
    "4 a result twice": [*CALLED, user(result(), result())],
    "4 results split": [user(text()), assistant(tool_use("a"), tool_use("b")), user(result("a")), user(result("b"))],
    "4 a result too late": [*CALLED, user(text()), assistant(text()), user(result())],
    "4 a result of nothing": [user(result())],
    "4 a result again": [*CALLED, user(result()), assistant(text()), user(result())],
    "5 text before results": [*CALLED, user(text(), result())],
    "6 an id again": [*CALLED, user(result()), *CALLED[1:], user(result())],
    "6 an id twice in a message": [user(text()), assistant(tool_use(), tool_use()), user(result())],
    "7 input a list": [user(text()), assistant({**tool_use(), "input": []}), user(result())],
    "7 input a text": [user(text()), assistant({**tool_use(), "input": "x"}), user(result())],
    "7 input null": [user(text()), assistant({**tool_use(), "input": None}), user(result())],
}


@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND)
async def test_a_sound_conversation_is_answered(messages: Messages) -> None:
    async with serving(FakeMessagesApi(TALK)) as (api, client):
        assert said(await ask(client, *messages)) == "ok"
    assert api.violations == []


@pytest.mark.parametrize("messages", BROKEN.values(), ids=BROKEN)
async def test_a_broken_conversation_is_refused_and_remembered(messages: Messages) -> None:
    async with serving(FakeMessagesApi(TALK)) as (api, client):
        response = await client.post("/v1/messages", json=body(*messages))
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert len(api.violations) == 1
    assert api.hits() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"model": None},
        {"temperature": 1.0},
        {"top_p": 1},
        {"top_k": 1},
        {"stream": False},
        {
            "cache_control": HOUR,
            "system": [{**text(), "cache_control": HOUR}] * 2,
            "tools": [{"name": "t", "cache_control": HOUR}] * 2,
        },
        {"cache_control": {}},
        {"cache_control": {"type": "ephemeral", "ttl": "2h"}},
        {"cache_control": HOUR, "system": [{**text(), "cache_control": SHORT}]},
        {"system": [{**text(" "), "cache_control": SHORT}]},
    ],
    ids=str,
)
async def test_rules_1_and_9_fields_the_api_would_refuse(fields: dict[str, Any]) -> None:
    async with serving(FakeMessagesApi(TALK)) as (api, client):
        assert (await ask(client, **fields)).status_code == 400
    assert api.violations


async def test_rule_9_four_markers_are_fine() -> None:
    long, short = {**text(), "cache_control": HOUR}, {**text(), "cache_control": SHORT}
    async with serving(FakeMessagesApi(TALK)) as (_, client):
        assert (await ask(client, user(short, short), system=[long, long])).status_code == 200


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln", "cache_control": SHORT},
        {**tool_use(), "cache_control": {"type": "for ever"}},
    ],
    ids=["on thinking", "of another type"],
)
async def test_rule_9_markers_that_the_api_would_refuse(block: dict[str, Any]) -> None:
    async with serving(FakeMessagesApi(TALK)) as (api, client):
        calls = [] if block["type"] == "tool_use" else [tool_use()]
        assert (await ask(client, user(text()), assistant(block, *calls), user(result()))).status_code == 400
    assert "cache_control" in api.violations[0]


async def test_rule_9_a_marker_within_a_result_counts() -> None:
    marked = {**text("x"), "cache_control": SHORT}
    async with serving(FakeMessagesApi(TALK)) as (_, client):
        sent = [user(text()), assistant(tool_use()), user(result(content=[marked] * 5))]
        assert (await ask(client, *sent)).status_code == 400


@pytest.mark.parametrize("content", [b"{", b"\xff{}", b"[]", b'{"max_tokens": NaN}', b""])
async def test_rule_1_a_body_that_is_no_json(content: bytes) -> None:
    async with serving(FakeMessagesApi(TALK)) as (api, client):
        assert (await client.post("/v1/messages", content=content)).status_code == 400
    assert api.violations


async def test_a_request_without_credentials_is_refused() -> None:
    async with serving(FakeMessagesApi(TALK)) as (_, client):
        del client.headers["authorization"]
        assert (await ask(client)).status_code == 400


async def test_rule_6_relaxed_for_gateways_that_count_anew_each_turn() -> None:
    again = [*CALLED, user(result()), *CALLED[1:], user(result())]
    async with serving(FakeMessagesApi(TALK, unique_ids=False)) as (_, client):
        assert (await ask(client, *again)).status_code == 200
        twice = [user(text()), assistant(tool_use(), tool_use()), user(result())]
        assert (await ask(client, *twice)).status_code == 400


CHANGES: dict[str, tuple[Messages, dict[str, Any]]] = {
    "another input": ([user(text("go!")), assistant(tool_use()), user(result())], {}),
    "another system prompt": ([*CALLED, user(result())], {"system": [text("be kind")]}),
    "another tool": ([*CALLED, user(result())], {"tools": [{"name": "t"}]}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_rule_10_what_was_sent_before_is_told_again_as_it_was(change: str) -> None:
    messages, fields = CHANGES[change]
    script = Script().then_tool_use("a", "t", {}).then_text("ok")
    async with serving(FakeMessagesApi({"go": script})) as (api, client):
        for first in ("go", "go!"):
            await ask(client, user(text(first)), system=[text("be brief")] if first == "go!" else [])
        assert (await ask(client, *messages, **{"system": []} | fields)).status_code == 400
    assert "bound to a different conversation" in api.violations[0]


async def test_rule_10_markers_may_move() -> None:
    script = Script().then_tool_use("a", "t", {}).then_text("ok")
    async with serving(FakeMessagesApi(script)) as (_, client):
        await ask(client, user({**text(), "cache_control": SHORT}), system=[text("be brief")])
        moved = {**result(), "cache_control": SHORT}
        system = [{**text("be brief"), "cache_control": HOUR}]
        assert (await ask(client, *CALLED, user(moved), system=system)).status_code == 200


async def test_a_prompt_cache_reads_what_it_wrote() -> None:
    script = Script().then_tool_use("a", "t", {}).then_text("ok")
    system = [{**text("be brief" * 100), "cache_control": HOUR}]
    async with serving(FakeMessagesApi(script, caching=True)) as (api, client):
        await ask(client, user({**text(), "cache_control": SHORT}), system=system)
        await ask(client, *CALLED, user({**result(), "cache_control": SHORT}), system=system)
        await ask(client, user(text("go again")), system=system)
    first, second, other = [hit.message["usage"] for hit in api.requests]
    split = first["cache_creation"]
    assert first["cache_read_input_tokens"] == 0
    assert split["ephemeral_1h_input_tokens"] > 200 > split["ephemeral_5m_input_tokens"] > 0
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"] == sum(split.values())
    assert 0 < second["cache_creation_input_tokens"] < 100
    assert second["input_tokens"] == 0
    assert other["cache_read_input_tokens"] == split["ephemeral_1h_input_tokens"]
    assert other["input_tokens"] > 0


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        ([THOUGHT, tool_use()], 200),
        ([tool_use()], 400),
        ([{**THOUGHT, "thinking": "hm!"}, tool_use()], 400),
        ([{**THOUGHT, "signature": ""}, tool_use()], 400),
        ([THOUGHT, THOUGHT, tool_use()], 400),
    ],
)
async def test_rule_8_thinking_comes_back_as_it_was_sent(returned: list[Any], status: int) -> None:
    script = Script().then_message([THOUGHT, tool_use()], "tool_use").then_text("ok")
    async with serving(FakeMessagesApi(script)) as (_, client):
        await ask(client)
        assert (await ask(client, user(text()), assistant(*returned), user(result()))).status_code == status


async def test_c08_a_paused_answer_is_continued_as_it_stands() -> None:
    script = Script().then_message([text("1"), text("2")], "pause_turn").then_message([text("3")], "pause_turn").then_text("end")
    async with serving(FakeMessagesApi(script)) as (api, client):
        assert said(await ask(client)) == "12"
        assert said(await ask(client, user(text()), assistant(text("1"), text("2")))) == "3"
        assert said(await ask(client, user(text()), assistant(text("1"), text("2")), assistant(text("3")))) == "end"
        assert said(await ask(client, user(text()), assistant(text("1"), text("2"), text("3")))) == "end"
    assert not api.violations


# ---- scripts


async def test_a_turn_is_found_from_the_conversation_alone() -> None:
    script = Script().then_text("one").then_text("two")
    async with serving(FakeMessagesApi(script)) as (api, client):
        assert said(await ask(client, user(text()), assistant(text("one")), user(text()))) == "two"
        assert said(await ask(client)) == "one"
    assert [(hit.turn, hit.conversation) for hit in api.requests] == [(1, "go"), (0, "go")]


async def test_failures_come_before_the_answer_of_their_turn_and_the_last_answer_repeats() -> None:
    script = Script().then_fail(529).then_fail("rate_limit_error", retry_after=7).then_text("at last " + NONCE)
    async with serving(FakeMessagesApi(script)) as (api, client):
        responses = [await ask(client) for _ in range(4)]
    assert [response.status_code for response in responses] == [529, 429, 200, 200]
    assert responses[1].headers["retry-after"] == "7"
    assert responses[1].json() == {"type": "error", "error": {"type": "rate_limit_error", "message": "scripted"}}
    assert [said(response) for response in responses[2:]] == ["at last nonce-3", "at last nonce-4"]
    assert api.requests[3].answer["content"] == [text("at last nonce-4")]


async def test_scripts_are_chosen_by_how_the_conversation_begins() -> None:
    scripts = {"go": Script().then_text("short"), "go far": Script().then_text("long"), "": Script().then_text("any")}
    async with serving(FakeMessagesApi(scripts)) as (api, client):
        assert said(await ask(client, user(text("go 7")))) == "short"
        assert said(await ask(client, user(text("go far away")))) == "long"
        assert said(await ask(client, user(text("stay")))) == "any"
    assert api.hits("go 7") == 1


async def test_a_request_no_script_foresees_is_a_violation() -> None:
    async with serving(FakeMessagesApi({"go": Script().then_text("one")})) as (api, client):
        assert (await ask(client, user(text("stay")))).status_code == 400
        assert (await ask(client, user(text()), assistant(text("one")), user(text()))).status_code == 400
    assert len(api.violations) == 2


async def test_an_answer_cut_by_max_tokens_may_be_followed_by_a_longer_one() -> None:
    script = Script().then_message([tool_use()], "max_tokens").again().then_text("whole")
    async with serving(FakeMessagesApi(script)) as (api, client):
        await ask(client)
        assert said(await ask(client, max_tokens=20)) == "whole"
        assert api.repeated == []


async def test_what_is_asked_again_after_a_whole_answer_is_repeated() -> None:
    async with serving(FakeMessagesApi(Script().then_fail(500).then_text("one").then_text("two"))) as (api, client):
        await ask(client)
        await ask(client)
        assert api.repeated == []
        await ask(client, user(text()), assistant(text("one")), user(text()))
        assert api.repeated == []
        await ask(client)
        assert [hit.number for hit in api.repeated] == [4]


def test_a_script_survives_json() -> None:
    script = (
        Script()
        .then_fail(429, retry_after=7)
        .then_hang()
        .then_reset()
        .then_ping(every=0.1, times=2)
        .then_tools([("a", "t", {"x": 1}), ("b", "t", None)], 812, 64, text="both")
        .then_sse(sse.message_start(), 0.5, sse.message_stop(), "reset")
        .after(1.5)
        .then_message([], "refusal", {"output_tokens": 1}, stop_details={"type": "refusal"})
        .again()
        .then_text("end")
        .held("door")
        .for_ever()
    )
    assert Script.from_json(json.loads(json.dumps(script.to_json()))) == script
    assert [len(turn) for turn in script.turns()] == [5, 1, 2]


async def test_the_stream_is_that_of_the_api() -> None:
    usage = {"input_tokens": 812, "output_tokens": 64, "cache_read_input_tokens": 5}
    script = Script().then_message([text("abcdef"), tool_use("toolu_1", {"q": 1})], "tool_use", usage)
    async with serving(FakeMessagesApi(script)) as (_, client):
        response = await ask(client)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == "req_1"
    assert response.text.startswith("event: message_start\ndata: {")
    received = events(response)
    assert [event["type"] for event in received] == [
        "message_start",
        *("content_block_start", "ping", *["content_block_delta"] * 3, "content_block_stop"),
        *("content_block_start", *["content_block_delta"] * 4, "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    assert received[0]["message"]["usage"] == {**usage, "output_tokens": 1}
    assert received[0]["message"]["content"] == []
    assert received[7]["content_block"] == {"type": "tool_use", "id": "toolu_1", "name": "t", "input": {}}
    assert "".join(event["delta"]["partial_json"] for event in received[8:12]) == '{"q": 1}'
    assert received[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": usage,
    }


# ---- watching and holding it


async def test_a_held_answer_waits_for_its_release() -> None:
    async with serving(FakeMessagesApi(Script().then_text("in").held("door"))) as (api, client):
        asking = asyncio.create_task(ask(client))
        await api.until_held("door")
        assert not asking.done()
        api.release("door")
        assert said(await asking) == "in"
        assert said(await ask(client)) == "in"  # the door stays open
        assert api.waiting == []


async def test_a_client_that_leaves_is_seen_and_holds_no_door() -> None:
    async with serving(FakeMessagesApi(Script().then_text("in").held("door"))) as (api, client):
        asking = asyncio.create_task(ask(client))
        await api.until_held("door")
        asking.cancel()
        await api.until(lambda: api.requests[0].aborted)
        assert api.waiting == []
        assert not api.requests[0].complete


async def test_waiting_in_vain_ends() -> None:
    async with FakeMessagesApi(Script()) as api:
        with pytest.raises(TimeoutError):
            await api.until_hits(1, within=0.05)


async def test_another_process_watches_and_releases_by_http() -> None:
    async with serving(FakeMessagesApi(Script().then_text("in").held("door"))) as (_, client):
        asking = asyncio.create_task(ask(client))
        assert (await client.get("/__waiting", params={"name": "door"})).json() == ["door"]
        ledger = (await client.get("/__ledger", params={"hits": 1, "conversation": "go"})).json()
        assert ledger[0]["conversation"] == "go"
        assert ledger[0]["body"]["messages"] == [user(text())]
        assert (await client.get("/__ledger", params={"hits": 2, "within": 0.05})).status_code == 408
        await client.post("/__release/door")
        assert said(await asking) == "in"
        assert (await client.get("/__waiting")).json() == []
        assert (await client.get("/elsewhere")).status_code == 404


def test_it_runs_in_a_thread_for_tests_without_a_loop() -> None:
    with FakeMessagesApi(Script().then_text("hi")).in_thread() as api:
        response = httpx.post(api.url + "/v1/messages", json=body(user(text())), headers=KEY)
        assert said(response) == "hi"
        asyncio.run(api.until_hits(1))


async def test_it_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"go": Script().then_text("hi").to_json(), "": Script().then_text("any").to_json()}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runfold.testing.fake_api", "--script", str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        url = (await process.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(base_url=url, headers=KEY) as client:
            assert said(await ask(client)) == "hi"
            assert len((await client.get("/__ledger")).json()) == 1
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
