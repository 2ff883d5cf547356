"""What is sent back to the model: exactly what it said, less what its API refuses; one user message per turn of tool calls."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from runfold.core import conversation
from runfold.core.conversation import DEEPEST, Message, ToolUse, _cached_turn, read_turn, tool_results
from runfold.testing.given import text, tool_use


def rendered(content_json: str) -> Any:
    turn = read_turn(content_json)
    assert turn.problem is None, turn.problem
    return None if turn.rendered is None else json.loads(turn.rendered.content_json)


def results(*content_jsons: str) -> Any:
    message = tool_results([(f"t{n}", content_json, False) for n, content_json in enumerate(content_jsons)])
    return [block["content"] for block in json.loads(message.content_json)]


def call(input_json: str) -> str:
    return f'[{{"type":"tool_use","id":"t1","name":"search","input":{input_json}}}]'


# ---- an answer, sent back


def test_an_answer_is_sent_back_in_the_very_text_it_came_in() -> None:
    """R2: also what nobody here knows, numbers no double can hold, and white space."""
    content = (
        '[ {"type":"thinking","thinking":"","signature":"Ef8="}, {"type":"text","text":"a\\u00e9😀"},'
        ' {"type":"brand_new","x":[1.00,12345678901234567890,null]}, {"type":"tool_use","id":"t","name":"n","input":{"a":0.10}}]'
    )
    assert read_turn(content).rendered == Message("assistant", content)


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_c06_2_blank_text_is_left_out_and_the_rest_stays(blank: str) -> None:
    thought = {"type": "thinking", "thinking": "", "signature": "s"}
    assert rendered(json.dumps([text(blank), thought, tool_use("t1"), text(blank)])) == [thought, tool_use("t1")]


@pytest.mark.parametrize("content", [[], [text("")], [text(" "), text("\n")]])
def test_c06_an_answer_of_which_nothing_remains_is_no_message(content: list[dict[str, Any]]) -> None:
    turn = read_turn(json.dumps(content))
    assert (turn.problem, turn.rendered, turn.tool_uses) == (None, None, ())


@pytest.mark.parametrize(
    "input_json",
    ['"str"', '"{\\"a\\":1"', "[]", "null", "5", "true", '{"a":1e400}', '{"a":{"b":[NaN]}}', '{"a":-Infinity}'],
)
def test_t06_2_an_input_that_is_no_object_json_can_carry_is_sent_back_as_one(input_json: str) -> None:
    [block] = rendered(call(input_json))
    assert list(block["input"]) == ["invalid_input"]
    assert isinstance(block["input"]["invalid_input"], str)
    [use] = read_turn(call(input_json)).tool_uses
    assert not isinstance(json.loads(use.input_json), dict), "or the tool would be called with it"


def test_t06_2_a_missing_input_is_sent_back_as_an_object() -> None:
    [block] = rendered('[{"type":"tool_use","id":"t1","name":"search"}]')
    assert block["input"] == {"invalid_input": "null"}


@pytest.mark.parametrize(
    "input_json", ["{}", '{"__proto__":1}', '{"a":' + "[" * 100 + "]" * 100 + "}", '{"a":1e308,"b":' + "9" * 400 + "}"]
)
def test_t06_any_object_is_a_legal_input(input_json: str) -> None:
    assert read_turn(call(input_json)).rendered == Message("assistant", call(input_json))
    [use] = read_turn(call(input_json)).tool_uses
    assert json.loads(use.input_json) == json.loads(input_json)


@pytest.mark.parametrize("name", ["n" * 300, 'a"b', "line\nbreak", "no such tool", "工具"])
def test_t05_any_name_comes_through(name: str) -> None:
    assert read_turn(json.dumps([tool_use("t1", name)])).tool_uses == (ToolUse("t1", name, "{}"),)


# ---- answers that break the rules


@pytest.mark.parametrize(
    "content_json",
    [
        "",
        "[",
        "null",
        "5",
        '{"type":"text"}',
        '["text"]',
        "[null]",
        "[{}]",
        '[{"type":5}]',
        '[{"type":null,"text":"a"}]',
        '[{"type":"text"}]',
        '[{"type":"text","text":5}]',
        '[{"type":"text","text":null}]',
        '[{"type":"text","text":["a"]}]',
        '[{"type":"tool_use","id":"t1","input":{}}]',
        '[{"type":"tool_use","id":"","name":"n","input":{}}]',
        '[{"type":"tool_use","id":1,"name":"n","input":{}}]',
        '[{"type":"tool_use","id":"t1","name":["n"],"input":{}}]',
        '[{"type":"tool_result","tool_use_id":"t0","content":"x"}]',
        '[{"type":"server_tool_use","id":"s1","name":"web_search","input":{"a":NaN}}]',
        '[{"type":"tool_use","id":"t1","name":"n","input":{},"caller":{"x":1e999}}]',
        '[{"type":"text","text":"a","citations":[{"at":Infinity}]}]',
        "\ufeff[]",
    ],
)
def test_content_that_the_api_would_never_take_back_is_a_problem(content_json: str) -> None:
    turn = read_turn(content_json)
    assert turn.problem
    assert (turn.tool_uses, turn.rendered) == ((), None)


def test_c04_1_an_id_twice_in_one_turn_is_a_problem() -> None:
    turn = read_turn(json.dumps([tool_use("call_0", input_={"n": 1}), tool_use("call_0", input_={"n": 2})]))
    assert turn.problem == "tool_use ids occur twice in one turn: call_0"


def test_a_turn_of_very_many_calls_is_read_in_linear_time() -> None:
    """A quadratic search for repeated ids would take minutes here."""
    assert len(read_turn(json.dumps([tool_use(str(n)) for n in range(20_000)])).tool_uses) == 20_000


def nested(levels: int) -> str:
    """Content of so many levels in all."""
    return call('{"a":' + "[" * (levels - 3) + "]" * (levels - 3) + "}")


def test_the_limit_of_nesting_is_ours_and_not_that_of_pythons_stack() -> None:
    """Else one worker would fold a run that another cannot."""
    assert read_turn(nested(DEEPEST)).problem is None
    problems = {read_turn(nested(depth)).problem for depth in (DEEPEST + 1, DEEPEST + 300, 5_000, 100_000)}
    assert problems == {f"the content is no JSON, or nested more than {DEEPEST} levels deep"}


def test_the_words_of_a_problem_are_those_of_this_module_and_not_of_a_python_release() -> None:
    """They end up in the run's state, which two builds must fold alike."""
    assert {read_turn(broken).problem for broken in ("", "[", "[1,]", '[{"a":"\x01"}]', "9" * 5_000)} == {
        f"the content is no JSON, or nested more than {DEEPEST} levels deep"
    }


# ---- text that UTF-8 can't carry


LONE = ["\\ud800", "\\uDFFF", "\ud800", "a\\uD83D"]


@pytest.mark.parametrize("half", LONE)
def test_half_a_surrogate_pair_becomes_the_replacement_character_everywhere(half: str) -> None:
    content = f'[{{"type":"text","text":"{half}"}},{{"type":"tool_use","id":"t{half}","name":"n{half}","input":{{"{half}":1}}}}]'
    turn = read_turn(content)
    assert turn.problem is None
    [use] = turn.tool_uses
    assert turn.rendered is not None
    for carried in (turn.text, use.id, use.name, use.input_json, turn.rendered.content_json):
        assert "\ufffd" in carried
        assert "\\ud" not in carried.lower()
        carried.encode()


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert rendered('[{"type":"text","text":"\\ud83d\\ude00"}]') == [text("😀")]


def test_ids_that_differ_only_in_what_cannot_be_carried_are_one_id_twice() -> None:
    assert read_turn(json.dumps([tool_use("t\ud800"), tool_use("t\ud801")])).problem is not None


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": ["\ud83d\ude00"]}])
def test_dump_writes_what_utf8_can_carry(value: object) -> None:
    conversation.dump(value).encode()


def test_dump_puts_the_replacement_character_and_no_question_mark() -> None:
    assert conversation.dump("a\ud800b") == '"a\ufffdb"'


def test_the_input_of_a_run_may_hold_anything() -> None:
    assert json.loads(conversation.user_text('"\n\0\ud800').content_json) == [text('"\n\0\ufffd')]


# ---- the results, sent back


def test_c01_results_are_one_message_in_the_order_given() -> None:
    message = tool_results([("a", '"1"', False), ("b", '"ValueError: no"', True), ("c", '[{"type":"text","text":"3"}]', False)])
    assert message.role == "user"
    assert json.loads(message.content_json) == [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": "ValueError: no", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c", "content": [text("3")]},
    ]


@pytest.mark.parametrize("content_json", ['"ok"', '""', '"a\\"b\\u00e9"', '[{"type":"image","source":{"data":"iVBO"}}]'])
def test_a_result_stays_in_the_text_it_was_recorded_in(content_json: str) -> None:
    assert tool_results([("t1", content_json, False)]).content_json == (
        f'[{{"type":"tool_result","tool_use_id":"t1","content":{content_json}}}]'
    )


@pytest.mark.parametrize(
    "content_json",
    [
        "",
        "oops",
        '"a","is_error":true',
        "null",
        "5",
        "{}",
        "[]",
        "[5]",
        "[{}]",
        '[{"type":"text","text":""}]',
        '[{"type":"text","text":5}]',
        '[{"type":"tool_use","id":"x","name":"n","input":{}}]',
        '[{"type":"x","n":NaN}]',
        "[" * 100_000,
    ],
)
def test_a_result_of_no_legal_shape_is_shown_as_the_text_it_is(content_json: str) -> None:
    assert results(content_json, '"fine"') == [content_json, "fine"]


@pytest.mark.parametrize("half", LONE)
def test_a_result_is_always_utf8(half: str) -> None:
    message = tool_results([("t1", f'"{half}"', False)])
    assert "\ufffd" in message.content_json.encode().decode()


# ---- the digest


def digests(messages: Sequence[Message]) -> list[str]:
    chain = ["0" * 64]
    for message in messages:
        chain.append(conversation.extend_digest(chain[-1], message))
    return chain


def test_a_digest_stands_for_role_content_order_and_all_that_came_before() -> None:
    one, two = conversation.user_text("one"), conversation.user_text("two")
    chains = [[one, two], [two, one], [one], [one, one], [Message("assistant", one.content_json), two]]
    assert len({digests(chain)[-1] for chain in chains}) == len(chains)


def test_a_digest_does_not_change_with_the_release() -> None:
    """It is in logs: this value is for ever."""
    pinned = "fb97f5c06fef074860756a04042b305b3de01bd2bd51868a6debac23553efa61"
    assert digests([conversation.user_text("go"), Message("assistant", "[]")])[-1] == pinned


def test_a_digest_tells_apart_what_only_differs_in_lone_surrogates() -> None:
    assert digests([Message("user", "\ud800")]) != digests([Message("user", "\ud801")])


def test_a_digest_does_not_depend_on_what_was_read_before() -> None:
    content = json.dumps([text(""), text("a"), tool_use("t1", input_=[])])
    cached = read_turn(content)
    _cached_turn.cache_clear()
    assert read_turn(content) == cached
