"""C: the conversation is what happened, told by the rules of the API (cases C01, C04, C06 to C09)."""

import asyncio
import json
from typing import Any

import pytest

from runfold.core.events import (
    ModelStepCompleted,
    OwnerEvent,
    Reason,
    Status,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.testing import Script, sse
from runfold.tools import ToolContext
from tests.cases.engine_scene import recording, stage

Blocks = list[dict[str, Any]]


def results(message: dict[str, Any]) -> list[tuple[str, str]]:
    """(tool_use id, content) of a user message that holds tool results and nothing else."""
    assert message["role"] == "user"
    assert {block["type"] for block in message["content"]} == {"tool_result"}
    return [(block["tool_use_id"], block["content"]) for block in message["content"]]


# ---- C01


async def test_c01_parallel_results_come_back_as_one_user_message_in_the_order_of_the_calls() -> None:
    script = Script().then_tools([("a", "slow", {}), ("b", "broken", {}), ("c", "fast", {})]).then_text("done")
    async with stage(script) as scene:
        others_ended = asyncio.Event()

        async def slow(context: ToolContext) -> str:
            await others_ended.wait()
            return "slow"

        def broken(context: ToolContext) -> str:
            raise ValueError("no such month")

        tools = {"slow": slow, "broken": broken, "fast": lambda context: "fast"}
        scene.serve(*(recording(scene.ledger, name, body) for name, body in tools.items()))
        scene.start()
        id_ = await scene.submit()
        await scene.logged(ToolStepFinished, id_, tool_use_id="b")
        await scene.logged(ToolStepFinished, id_, tool_use_id="c")
        others_ended.set()
        run = await scene.settled(id_)

        messages = scene.asked("go", 2)["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"], "C01.1"
        assert [block["id"] for block in messages[1]["content"]] == ["a", "b", "c"], "C01.1"
        assert results(messages[2]) == [("a", "slow"), ("b", "ValueError: no such month"), ("c", "fast")], "C01.2"
        assert [block.get("is_error", False) for block in messages[2]["content"]] == [False, True, False], "C01.2"
        assert (run.status, scene.api.hits()) == (Status.SUCCEEDED, 2), "C01.3"
        ended = {event.tool_use_id: event.status for event in scene.log(id_, ToolStepFinished)}
        assert ended == {"a": ToolStatus.DONE, "b": ToolStatus.ERROR, "c": ToolStatus.DONE}, "C01.3"
        assert len(scene.log(id_, ToolStepFinished)) == 3, "C01.3"


# ---- C04


async def test_c04_v1_an_id_that_occurs_twice_in_one_turn_is_an_invalid_response() -> None:
    script = Script().then_tools([("call_0", "act", {"n": 1}), ("call_0", "act", {"n": 2})]).for_ever()
    async with stage(script) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert (run.status, run.reason) == (Status.FAILED, Reason.INVALID_MODEL_RESPONSE), "C04.1"
        assert scene.api.hits() == 1, "C04.1"
        assert not scene.ledger, "C04.1"


async def test_c04_v2_the_same_id_in_two_turns_is_two_calls_with_two_keys() -> None:
    script = Script().then_tool_use("call_0", "act", {"n": 1}).then_tool_use("call_0", "act", {"n": 2}).then_text("done")
    async with stage(script, unique_ids=False) as scene:
        count = iter(range(1, 10))
        scene.serve(recording(scene.ledger, "act", lambda context: f"result {next(count)}"))
        run = await scene.play()
        assert [execution.key for execution in scene.ledger] == [f"{run.id}/1/call_0", f"{run.id}/3/call_0"], "C04.2"
        messages = scene.asked("go", 3)["messages"]
        assert results(messages[2]) == [("call_0", "result 1")], "C04.3"
        assert results(messages[4]) == [("call_0", "result 2")], "C04.3"
        assert run.status is Status.SUCCEEDED, "C04.3"


# ---- C06


async def test_c06_v1_an_empty_answer_is_an_end() -> None:
    async with stage(Script().then_tool_use("a", "act", {}).then_message([], "end_turn")) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert (run.status, run.output, scene.api.hits()) == (Status.SUCCEEDED, "", 2), "C06.1"


async def test_c06_v2_an_empty_text_block_stays_in_the_log_and_out_of_the_request() -> None:
    blocks: Blocks = [{"type": "text", "text": ""}, {"type": "tool_use", "id": "a", "name": "act", "input": {}}]
    async with stage(Script().then_message(blocks, "tool_use").then_text("done")) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert run.status is Status.SUCCEEDED
        assert scene.asked("go", 2)["messages"][1]["content"] == blocks[1:], "C06.2"
        assert json.loads(scene.log(run.id, ModelStepCompleted)[0].content_json) == blocks, "C06.2"


async def test_c06_v3_the_output_is_the_last_text_that_was_said() -> None:
    script = Script().then_tools([("a", "note", {})], text="The answer is 42").then_message([], "end_turn")
    async with stage(script) as scene:
        scene.serve(recording(scene.ledger, "note"))
        run = await scene.play()
        assert (run.status, run.output) == (Status.SUCCEEDED, "The answer is 42"), "C06.3"


# ---- C07

CUT = "max_tokens"
CUT_ANSWERS: dict[str, Blocks] = {
    "V1: in the middle of its input": [
        {"type": "tool_use", "id": "a", "name": "write", "partial_json": '{"path":"/a","text":"abc'}
    ],
    "V2: before its input": [{"type": "tool_use", "id": "a", "name": "write", "input": {}}],
    "V3: in the second call": [
        {"type": "tool_use", "id": "a", "name": "write", "input": {"n": 1}},
        {"type": "tool_use", "id": "b", "name": "write", "partial_json": '{"n":'},
    ],
}


@pytest.mark.parametrize("variant", CUT_ANSWERS)
async def test_c07_no_tool_of_a_truncated_turn_runs(variant: str) -> None:
    async with stage(Script().then_message(CUT_ANSWERS[variant], CUT).again().for_ever()) as scene:
        scene.serve(recording(scene.ledger, "write"))
        run = await scene.play(max_tokens=100)
        assert not scene.ledger, "C07.1"
        assert not scene.log(run.id, ToolStepStarted), "C07.1"
        assert (run.status, run.reason) == (Status.FAILED, Reason.MAX_TOKENS), "C07.2"
        asked = [scene.asked("go", n) for n in (1, 2, 3)]
        assert scene.api.hits() == 3, "C07.2: at most two more requests"
        assert [body["max_tokens"] for body in asked] == [100, 200, 400], "C07.2: each with more room"
        assert all(body["messages"] == asked[0]["messages"] for body in asked), "C07.2: of the same prefix"
        assert (run.usage.input_tokens, run.usage.output_tokens) == (30, 15), "C07.3: each cut answer is counted"


async def test_c07_v1_as_a_stream_word_for_word() -> None:
    """C07.1, C07.3: the input's JSON breaks off, the block is closed and the message ends regularly."""
    script = Script().then_sse(
        sse.message_start(),
        sse.tool_use_start(0, "a", "write"),
        sse.input_delta('{"path":"/a","text":"abc'),
        sse.block_stop(),
        sse.message_delta(CUT),
        sse.message_stop(),
    )
    async with stage(script.again().for_ever()) as scene:
        scene.serve(recording(scene.ledger, "write"))
        run = await scene.play()
        assert (run.status, run.reason, scene.ledger) == (Status.FAILED, Reason.MAX_TOKENS, [])


# ---- C08


async def test_c08_v1_a_paused_turn_is_continued_as_it_stands_also_by_another_worker() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    paused: Blocks = [{"type": "text", "text": "Searching"}, search]
    found: Blocks = [{"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}, {"type": "text", "text": "Found"}]
    async with stage(Script().then_message(paused, "pause_turn").then_message(found, "end_turn")) as scene:
        scene.serve(recording(scene.ledger, "act"))

        def answered(event: OwnerEvent) -> bool:
            return isinstance(event, ModelStepCompleted)

        killed = scene.kill_at(answered, committed=True)  # KP2
        scene.start()
        id_ = await scene.submit()
        await killed
        scene.start()
        run = await scene.settled(id_)
        assert scene.api.hits() == 2
        first, second = scene.asked("go", 1), scene.asked("go", 2)
        assert second["messages"] == [*first["messages"], {"role": "assistant", "content": paused}], "C08.1"
        assert second["tools"] == first["tools"], "C08.1"
        assert (run.status, run.output) == (Status.SUCCEEDED, "Found"), "C08.2"
        assert not scene.log(id_, ToolStepStarted), "C08.2"


async def test_c08_v2_a_turn_that_pauses_for_ever_meets_the_step_cap() -> None:
    async with stage(Script().then_message([{"type": "text", "text": "Searching"}], "pause_turn").for_ever()) as scene:
        run = await scene.play(max_steps=4)
        assert scene.api.hits() == 4, "C08.3"
        assert (run.status, run.reason) == (Status.FAILED, Reason.STEP_CAP), "C08.3"


# ---- C09

HALF = [{"type": "text", "text": "half a text"}]


@pytest.mark.parametrize(
    ("content", "stop_reason", "status", "reason"),
    [
        ([], "refusal", Status.FAILED, Reason.REFUSAL),
        (HALF, "model_context_window_exceeded", Status.FAILED, Reason.CONTEXT_WINDOW),
        (HALF, "brand_new", Status.SUSPENDED, Reason.UNKNOWN_STOP_REASON),
    ],
)
async def test_c09_what_cannot_be_continued_fails_closed(
    content: Blocks, stop_reason: str, status: Status, reason: Reason
) -> None:
    async with stage(Script().then_message(content, stop_reason).for_ever()) as scene:
        run = await scene.play()
        assert (run.status, run.reason) == (status, reason), "C09.1: three distinct reasons"
        assert [event.stop_reason for event in scene.log(run.id, ModelStepCompleted)] == [stop_reason], "C09.2"
        assert scene.api.hits() == 1, "C09.3"
        assert run.usage.total == 15, "C09.3"


async def test_c09_a_refusal_after_a_tool_keeps_what_was_done() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "no"}
    script = Script().then_tool_use("a", "act", {}).then_message([], "refusal", stop_details=details).for_ever()
    async with stage(script) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert (run.status, run.reason) == (Status.FAILED, Reason.REFUSAL), "C09.1"
        refused = scene.log(run.id, ModelStepCompleted)[1]
        assert (refused.stop_reason, json.loads(refused.stop_details_json or "")) == ("refusal", details), "C09.2"
        assert "cyber" in run.detail, "C09.2: shown"
        assert scene.api.hits() == 2, "C09.3"
        assert [event.status for event in scene.log(run.id, ToolStepFinished)] == [ToolStatus.DONE], "C09.3"
        assert (run.usage.total, run.steps) == (30, 3), "C09.3"
