"""Conversations by chance, for `test_random_conversations`: what models say in every turn, what tools give back, how agents are
defined. Odd, and nearly all of it possible: what an API or a gateway has sent to somebody."""

import json
from random import Random
from typing import Any

from runfold.core.conversation import is_utf8
from runfold.core.events import Usage

from .pure_worker import Answer

SHORT, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TEXTS = ("", " ", "\n", "Let me see", "é\u3000", "😀", "a\udfffb", '"\\', "x" * 300, "\0")
INPUTS: tuple[Any, ...] = (
    {}, {"n": 1}, {"n": 1e300, "m": 10**30}, {"text": "\ud83d"}, {"cache_control": [1, {"type": "ephemeral"}]},
    {"deep": [[[[{"a": [None, True]}]]]]}, [], None, "text", '{"n":', 7, float("inf"), {"n": float("nan")}, [[[]]],
)  # fmt: skip
RESULTS = (
    '"ok"', '""', '" "', '"\\ud800"', "oops", "", '{"no":"block"}', "[]", "[1]", "null", "17", '"a","is_error":true',
    '[{"type":"text","text":"two"},{"type":"text","text":"blocks"}]', '[{"type":"text","text":" "}]', '[{"type":"text"}]',
    '[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"eA=="}}]', "[" * 300 + "]" * 300,
    '[{"type":"text","text":"kept","cache_control":{"type":"ephemeral"}}]',
    '[{"type":"tool_use","id":"t","name":"n","input":{}}]',
)  # fmt: skip
LAST = ("end_turn", "stop_sequence", "refusal", "model_context_window_exceeded", "brand_new", "compaction", "pause_turn")


def random_definition(chance: Random) -> dict[str, Any]:
    """Fields of `AgentDefinition`."""
    own = [{}, {}, {"cache_control": HOUR if chance.random() < 0.3 else SHORT}]
    system = [{"type": "text", "text": f"rule {n}", **chance.choice(own)} for n in range(chance.randrange(3))]
    tools = [{"name": f"t{n}", "input_schema": {"type": "object"}, **chance.choice(own)} for n in range(chance.randrange(3))]
    return {
        "system_json": json.dumps(system),
        "tools_json": json.dumps(tools),
        "options_json": chance.choice(["{}", '{"thinking":{"type":"adaptive"}}']),
        "cache_ttl": chance.choice(["5m", "1h", "off"]),
    }


def random_answers(chance: Random) -> list[Answer]:
    """A few turns that go on, and one that is likely to be the last."""
    answers = [_going_on(chance, turn) for turn in range(chance.randrange(5))]
    if chance.random() < 0.5:
        last = chance.choice(LAST)
        answers.append(_answer(chance, _said(chance), last))
    return answers


def _going_on(chance: Random, turn: int) -> Answer:
    match chance.randrange(8):
        case 0:
            search = {"type": "server_tool_use", "id": f"s{turn}", "name": "web_search", "input": {}}
            return _answer(chance, [{"type": "text", "text": "Searching"}, *chance.choice([[], [search]])], "pause_turn")
        case 1:
            return _answer(chance, [*_said(chance), *_calls(chance, turn)], "max_tokens")
        case _:
            return _answer(chance, [*_said(chance), *_calls(chance, turn)], "tool_use")


def _said(chance: Random) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if chance.random() < 0.4:
        blocks.append({"type": "thinking", "thinking": chance.choice(TEXTS), "signature": f"sig{chance.random()}"})
    if chance.random() < 0.1:
        blocks.append({"type": "redacted_thinking", "data": "eHl6"})
    blocks += [{"type": "text", "text": chance.choice(TEXTS)} for _ in range(chance.choice([0, 1, 1, 2]))]
    return [*blocks, {"type": "brand_new", "payload": [1.5, None]}] if chance.random() < 0.05 else blocks


def _calls(chance: Random, turn: int) -> list[dict[str, Any]]:
    most = chance.choice([1, 1, 2, 4])
    return [{"type": "tool_use", "id": f"t{turn}_{n}", "name": "act", "input": chance.choice(INPUTS)} for n in range(most)]


def _answer(chance: Random, blocks: list[dict[str, Any]], stop_reason: str) -> Answer:
    indent = chance.choice([None, 1])
    text = json.dumps(blocks, ensure_ascii=False, indent=indent)
    if chance.random() < 0.5 or not is_utf8(text):  # then no worker could have written it down
        text = json.dumps(blocks, indent=indent)
    usage = Usage(input_tokens=chance.randrange(300), output_tokens=chance.randrange(100))
    return Answer(text, stop_reason, usage, failures=chance.choice([0, 0, 0, 1, 2]))
