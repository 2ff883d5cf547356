"""What a model says and what tools do, by chance: everything the Messages API allows, and some of what it does not."""

import asyncio
import random
from typing import Any

from runfold.testing import Script, sse
from runfold.tools import Tool, ToolContext, ToolError, tool
from tests.cases.engine_scene import Ledger, recording

TOOLS = ("act", "once", "serial", "broken", "thread", "nobody")
INPUTS: tuple[dict[str, Any], ...] = (
    {"input": {}},
    {"input": {"n": 3}},
    {"input": {"n": 3}},
    {"input": {"n": "three"}},
    {"input": []},
    {"input": None},
    {"input": "text"},
    {"partial_json": '{"n":'},
    {"partial_json": '{"n":1e999}'},
)
PASSING = (500, 503, 529, "overloaded_error", "rate_limit_error")


def random_script(chance: random.Random) -> Script:
    """A conversation of a few turns; most end well."""
    script = Script()
    for turn in range(chance.randrange(4)):
        script = _tool_turn(chance, _trouble(chance, script), turn)
    return _end(chance, _trouble(chance, script))


def _trouble(chance: random.Random, script: Script) -> Script:
    """What a turn may begin with: errors, broken streams, answers that are cut off, a pause."""
    for _ in range(chance.choice([0, 0, 0, 1, 1, 2])):
        match chance.randrange(6):
            case 0 | 1:
                script = script.then_fail(chance.choice(PASSING))
            case 2:
                script = script.then_reset()
            case 3:
                script = script.then_sse(sse.message_start(), sse.text_start(), sse.text_delta("Hel"), *_broken(chance))
            case 4:
                cut = [_call(chance, "cut", 0), {"type": "text", "text": "abc"}]
                script = script.then_message(cut, "max_tokens").again()
            case _:
                script = script.then_message([{"type": "text", "text": "Thinking it over"}], "pause_turn")
    return script


def _broken(chance: random.Random) -> list[Any]:
    return chance.choice([[], ["reset"], [sse.error_event("overloaded_error")]])


def _tool_turn(chance: random.Random, script: Script, turn: int) -> Script:
    said = [{"type": "text", "text": text} for text in chance.choice([[], [""], ["Let me see"], [" ", "So"]])]
    calls = [_call(chance, f"t{turn}_{script_length(script)}", n) for n in range(chance.randrange(1, 5))]
    return script.then_message([*said, *calls], "tool_use").after(chance.random() / 200)


def script_length(script: Script) -> int:
    return len(script.answers)


def _call(chance: random.Random, prefix: str, n: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"{prefix}_{n}", "name": chance.choice(TOOLS), **chance.choice(INPUTS)}


def _end(chance: random.Random, script: Script) -> Script:
    match chance.randrange(12):
        case 0:
            return script.then_message([], "end_turn")
        case 1:
            return script.then_message([{"type": "text", "text": " "}], "end_turn")
        case 2:
            return script.then_message([], "refusal")
        case 3:
            return script.then_message([{"type": "text", "text": "half"}], chance.choice(["brand_new", "max_tokens"])).for_ever()
        case 4:
            return script.then_fail(chance.choice([400, 401, 529])).for_ever()
        case _:
            return script.then_text("done").after(chance.random() / 200)


def random_tools(chance: random.Random, ledger: Ledger) -> list[Tool[..., Any]]:
    """One for each name in `TOOLS`, but for "nobody", which does not exist. Each keeps the ledger."""

    async def briefly(context: ToolContext) -> str:
        await asyncio.sleep(chance.random() / 100)
        return f"result of {context.tool_use_id}"

    def breaks(context: ToolContext) -> str:
        raise ToolError("broken")

    @tool(name="thread", idempotency="optional")
    def thread(context: ToolContext, n: int = 0) -> str:
        ledger.enter(context, n)
        return "from a thread"

    return [
        recording(ledger, "act", briefly),
        recording(ledger, "once", briefly, repeatable=False),
        recording(ledger, "serial", briefly, parallel=False),
        recording(ledger, "broken", breaks),
        thread,
    ]
