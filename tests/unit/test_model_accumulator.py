"""One answer from the events of its stream."""

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason, Usage
from runfold.model import exact_json
from runfold.model.accumulator import Accumulator, usage_of
from runfold.ports import ModelAnswer
from runfold.testing import sse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def accumulated(*events: dict[str, Any]) -> ModelAnswer:
    message = Accumulator()
    for event in (sse.message_start(), *events, sse.message_delta("end_turn"), sse.message_stop()):
        message.feed(event)
    return message.answer("asked-for", "req_1")


def content(*events: dict[str, Any]) -> Any:
    return json.loads(accumulated(*events).content_json)


@given(st.lists(JSON, max_size=3), st.text(), st.text())
def test_content_equals_what_was_received(inputs: list[Any], text: str, thought: str) -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": thought, "signature": "s"},
        {"type": "text", "text": text, "citations": [{"cited_text": text}]},
        *({"type": "tool_use", "id": f"t{n}", "name": "t", "input": value} for n, value in enumerate(inputs)),
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": inputs},
    ]
    assert content(*(event for index, block in enumerate(blocks) for event in sse.block_events(index, block))) == blocks


def test_a_pair_that_two_deltas_share_becomes_one_character() -> None:
    events = [sse.text_start(), sse.text_delta("\ud83d"), sse.text_delta("\udc4b"), sse.block_stop()]
    assert accumulated(*events).content_json == '[{"type":"text","text":"\U0001f44b"}]'


def test_half_a_pair_is_kept_as_an_escape() -> None:
    text = accumulated(sse.text_start(), sse.text_delta("ä\ud83d"), sse.block_stop()).content_json
    assert text.encode() == '[{"type":"text","text":"ä\\ud83d"}]'.encode()


def test_infinity_outside_tool_input_is_refused_rather_than_changed() -> None:
    with pytest.raises(ModelFailure) as caught:
        accumulated(sse.block_start(0, {"type": "x", "n": float("inf")}), sse.block_stop())
    assert caught.value.reason == Reason.UNSUPPORTED_RESPONSE


def test_blocks_may_interleave() -> None:
    blocks = content(
        sse.text_start(0), sse.text_start(1), sse.text_delta("b", 1), sse.text_delta("a", 0), sse.block_stop(0), sse.block_stop(1)
    )
    assert [block["text"] for block in blocks] == ["a", "b"]


@pytest.mark.parametrize(
    "events",
    [
        [sse.text_start(1)],
        [sse.text_start(0), sse.text_start(0)],
        [sse.text_delta("x")],
        [sse.text_start(), sse.block_stop(), sse.text_delta("late")],
        [sse.block_stop()],
        [sse.message_start()],
        [{"type": "content_block_start"}],
        [sse.text_start(), {"type": "content_block_delta", "index": 0, "delta": None}],
        [sse.text_start(), {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}],
        [{"type": "message_delta", "delta": 5}],
        [{}],
    ],
    ids=str,
)
def test_a_stream_that_breaks_its_own_rules_may_pass(events: Iterable[dict[str, Any]]) -> None:
    with pytest.raises(ModelFailure) as caught:
        accumulated(*events)
    assert (caught.value.reason, caught.value.retryable) == (Reason.API_ERROR, True)


def test_long_answers_take_linear_time() -> None:
    """A mebibyte of tool input in pieces of 40 bytes: the SDK's own accumulator takes seconds."""
    piece = "x" * 40
    deltas = [sse.input_delta(text) for text in ('{"text":"', *[piece] * 26_215, '"}')]
    texts = [sse.text_delta(piece, 1) for _ in range(26_215)]
    began = time.process_time()
    tool, text = content(
        sse.tool_use_start(0, "t", "t"), *deltas, sse.block_stop(0), sse.text_start(1), *texts, sse.block_stop(1)
    )
    assert len(tool["input"]["text"]) == len(text["text"]) == 26_215 * 40
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({}, Usage()),
        ({"input_tokens": 3, "cache_creation_input_tokens": None, "cache_read_input_tokens": None}, Usage(input_tokens=3)),
        ({"cache_creation_input_tokens": 700}, Usage(cache_write_5m_tokens=700)),
        ({"cache_creation_input_tokens": 700, "cache_creation": None}, Usage(cache_write_5m_tokens=700)),
        (
            {
                "cache_creation_input_tokens": 2000,
                "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 1000},
            },
            Usage(cache_write_5m_tokens=1000, cache_write_1h_tokens=1000),
        ),
        ({"cache_creation": {"ephemeral_1h_input_tokens": 9}}, Usage(cache_write_1h_tokens=9)),
        ({"input_tokens": "12", "output_tokens": -1, "cache_read_input_tokens": 1.5}, Usage()),
    ],
)
def test_b06_2_usage_that_is_not_told_is_none(reported: dict[str, Any], expected: Usage) -> None:
    assert usage_of(reported) == expected


@given(JSON)
def test_exact_json_reads_what_it_writes(value: Any) -> None:
    text = exact_json.dumps(value)
    text.encode()
    assert exact_json.loads(text) == value


@given(JSON)
def test_what_is_sent_equals_what_was_stored(value: Any) -> None:
    assert exact_json.sendable(exact_json.dumps(value)) == value
