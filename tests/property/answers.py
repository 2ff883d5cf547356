"""Strategies: what a model may send, in every shape that got through to somebody, and many that should not."""

import json
from typing import Any

from hypothesis import strategies as st

TEXTS = st.sampled_from(["", " ", "\n", "go", "\0", "\ud800", "a\udfffb", "\u00e9\u3000", "😀", '"', "\\"]) | st.text(max_size=6)
NAMES = st.sampled_from(["t1", "t2", "call_0", "search", "", "n" * 300, 'a"b', "line\nbreak", "\ud800"])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | st.just(10**400)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def _block(type_: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(type_), **fields})


LEGAL_BLOCKS = (
    _block("text", text=TEXTS)
    | _block("thinking", thinking=TEXTS, signature=st.just("Ef8="))
    | _block("redacted_thinking", data=st.just("x"))
    | _block("brand_new", payload=st.lists(TEXTS, max_size=2))
)
CALLS = st.lists(
    _block("tool_use", id=st.sampled_from(["t1", "t2", "t3", "call_0"]), name=NAMES.filter(bool), input=VALUES),
    min_size=1,
    max_size=4,
    unique_by=lambda block: block["id"],
)
ODD_BLOCKS = (
    st.fixed_dictionaries({}, optional={"type": SCALARS, "text": VALUES, "id": VALUES, "name": VALUES, "input": VALUES})
    | _block("text", text=VALUES)
    | _block("tool_use", id=NAMES, name=NAMES, input=VALUES)
    | _block("tool_use")
    | _block("tool_result", tool_use_id=NAMES, content=VALUES)
    | _block("server_tool_use", id=NAMES, name=NAMES, input=VALUES)
)


def _dumps(value: Any, ascii_: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_)


_NESTED = st.sampled_from([150, 300, 950, 3_000, 100_000]).map(
    lambda depth: '[{"type":"tool_use","id":"t1","name":"n","input":{"a":' + "[" * depth + "]" * depth + "}}]"
)
BLOCKS = LEGAL_BLOCKS | ODD_BLOCKS
SPEAKING = st.builds(_dumps, st.lists(LEGAL_BLOCKS, max_size=3), st.booleans())
_TURNS = st.tuples(st.lists(LEGAL_BLOCKS, max_size=2), CALLS).map(lambda both: [*both[0], *both[1]])
ASKING = st.builds(_dumps, _TURNS, st.booleans())
CONTENTS = (
    SPEAKING
    | ASKING
    | st.builds(_dumps, st.lists(BLOCKS, max_size=4), st.booleans())
    | st.builds(_dumps, VALUES, st.booleans())
    | _NESTED
    | st.text(max_size=10)
    | st.sampled_from(["", "[", "null", "[" * 100_000, "\ufeff[]", '[{"type":"text","text":"\\ud800"}]', "[1e999]", "9" * 5_000])
)
_KNOWN = ["tool_use", "end_turn", "stop_sequence", "pause_turn", "max_tokens", "refusal", "model_context_window_exceeded"]
STOP_REASONS = st.sampled_from([*_KNOWN, "", "new\ud800"])
SAID = (  # content and stop_reason
    st.tuples(ASKING, st.just("tool_use"))
    | st.tuples(SPEAKING, st.sampled_from(["end_turn", "pause_turn"]))
    | st.tuples(CONTENTS, STOP_REASONS)
)
RESULTS = (
    st.builds(_dumps, TEXTS | st.lists(BLOCKS, max_size=2) | VALUES, st.booleans())
    | st.text(max_size=6)
    | st.sampled_from(['"ok"', "", "oops", '"a","is_error":true', "[" * 100_000])
)
