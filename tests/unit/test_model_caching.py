"""Where the markers for the API's prompt cache go, whatever the agent has marked itself."""

import json
from itertools import product
from random import Random
from typing import Any

import pytest

from runfold.model.request import arguments
from runfold.testing import model_request
from runfold.testing.fake_api.markers import complaints, unmarked

SHORT = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(value: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def body(*said: Any, ttl: str = "5m", **fields: Any) -> dict[str, Any]:
    """The request for a conversation; ``fields``: system, tools, options."""
    texts = {f"{name}_json": json.dumps(value) for name, value in fields.items()}
    return arguments(model_request(*said or ("go",), cache_ttl=ttl, **texts))


def marked(request: dict[str, Any]) -> dict[str, Any]:
    """Markers by place."""
    blocks = {f"system {n}": block for n, block in enumerate(request.get("system", []))}
    blocks |= {f"tools {n}": block for n, block in enumerate(request.get("tools", []))}
    blocks |= {f"{m} {n}": block for m, message in enumerate(request["messages"]) for n, block in enumerate(message["content"])}
    return {place: block["cache_control"] for place, block in blocks.items() if "cache_control" in block}


def test_one_marker_on_the_last_system_block_and_one_on_the_last_user_block() -> None:
    said = [text("I look"), {"type": "tool_use", "id": "a", "name": "f", "input": {}}]
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "42"}]
    assert marked(body(system=[text(), text()])) == {"system 1": SHORT, "0 0": SHORT}
    assert marked(body("go", said, results, system=[text()], ttl="1h")) == {"system 0": HOUR, "2 0": SHORT}


def test_behind_a_pause_the_last_user_block_is_the_one_before_it() -> None:
    assert marked(body("go", [text("wait")])) == {"0 0": SHORT}


def test_off_is_off() -> None:
    assert marked(body(system=[text()], ttl="off")) == {}


def test_an_agents_own_markers_count_and_stay() -> None:
    own = [text(cache_control=HOUR), text(cache_control=SHORT), text(cache_control=SHORT)]
    assert marked(body(system=[*own, text()])) == {"system 0": HOUR, "system 1": SHORT, "system 2": SHORT, "0 0": SHORT}
    assert "0 0" not in marked(body(system=[*own, text(cache_control=SHORT)]))


def test_an_hour_never_comes_behind_five_minutes() -> None:
    assert marked(body(system=[text(cache_control=SHORT), text()], ttl="1h"))["system 1"] == SHORT
    assert marked(body(system=[text()], options={"cache_control": HOUR}))["system 0"] == HOUR


def test_where_the_api_moves_a_marker_of_its_own_there_is_none_of_ours() -> None:
    assert marked(body(system=[text()], options={"cache_control": SHORT})) == {"system 0": SHORT}


def test_what_tools_mark_in_their_results_is_taken_off_in_every_request() -> None:
    """Each turn would add one, and the fifth would be refused for ever."""
    said = [{"type": "tool_use", "id": "a", "name": "f", "input": {"cache_control": 1}}]
    results = [{"type": "tool_result", "tool_use_id": "a", "content": [text(cache_control=HOUR)], "cache_control": HOUR}]
    for ttl in ("5m", "off"):
        request = body("go", said, results, said, results, ttl=ttl)
        assert repr(request["messages"]).count("ephemeral") == (ttl == "5m")
        assert request["messages"][1]["content"] == said


def random_blocks(chance: Random, make: Any, most: int) -> list[Any]:
    markers: list[dict[str, Any]] = [{}, {}, {}, {"cache_control": SHORT}, {"cache_control": HOUR}]
    return [make() | chance.choice(markers) for _ in range(chance.randrange(most))]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_agent_marks_soundly_the_request_is_sound_and_means_the_same(seed: int) -> None:
    """Only what the agent itself gets wrong is wrong."""
    chance, sound = Random(seed), 0
    for _, ttl in product(range(400), ("5m", "1h")):
        system, tools = random_blocks(chance, text, 4), random_blocks(chance, lambda: {"name": "f", "input_schema": {}}, 3)
        results = [{"type": "tool_result", "tool_use_id": "a", "content": random_blocks(chance, text, 3) or "x"}]
        said = [{"type": "tool_use", "id": "a", "name": "f", "input": {"cache_control": 1}}]
        options = chance.choice([{}, {}, {"cache_control": SHORT}, {"cache_control": HOUR}])
        parts: dict[str, Any] = {"system": system, "tools": tools, "options": options}
        own = body("go", said, results, ttl="off", **parts)
        if not list(complaints(own)):
            sound += 1
            request = body("go", said, results, ttl=ttl, **parts)
            assert list(complaints(request)) == [], f"seed {seed}"
            assert unmarked(request) == unmarked(own)
    assert sound > 100
