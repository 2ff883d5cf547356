"""Agents, apps, and how a worker finds them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runfold.agents import Agent, App, load_app
from runfold.core.errors import ConfigError
from runfold.core.events import AgentDefinition, ToolStatus
from runfold.tools import tool

from .tool_calls import request, text


@tool(side_effect="read")
def find(query: str) -> str:
    """Find."""
    return query.upper()


@tool(side_effect="read", name="find")
def find_too(query: str, limit: int = 3) -> str:
    return query * limit


# ---- agents


def test_definition_holds_what_the_api_takes() -> None:
    options = {"thinking": {"type": "adaptive"}}
    definition = Agent("t", "some-model", "Be kind – always.", [find], max_tokens=100, options=options).definition()
    assert definition == AgentDefinition(
        name="t",
        model="some-model",
        max_tokens=100,
        system_json='[{"type":"text","text":"Be kind – always."}]',
        tools_json='[{"name":"find","description":"Find.","input_schema":{"additionalProperties":false,'
        '"properties":{"query":{"type":"string"}},"required":["query"],"type":"object"}}]',
        options_json='{"thinking":{"type":"adaptive"}}',
        hash=definition.hash,
    )


def test_bare_agent_has_empty_parts() -> None:
    definition = Agent("t", "m").definition()
    assert (definition.system_json, definition.tools_json, definition.options_json) == ("[]", "[]", "{}")


def test_system_blocks_are_kept() -> None:
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert Agent("t", "m", [block]).definition().system_json == (
        '[{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}]'
    )


def test_how_long_prompts_are_cached_is_part_of_the_definition() -> None:
    assert Agent("t", "m").definition().cache_ttl == "5m"
    assert Agent("t", "m", cache_ttl="1h").definition(model="n").cache_ttl == "1h"
    with pytest.raises(ConfigError, match="cache_ttl must be one of 5m, 1h, off, got '2h'"):
        Agent("t", "m", cache_ttl="2h")


def test_more_markers_than_the_api_takes_are_refused_when_the_agent_is_made() -> None:
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    Agent("t", "m", [block] * 4)
    with pytest.raises(ConfigError, match="at most 4 cache_control markers may be given, got 5"):
        Agent("t", "m", [block] * 4, options={"cache_control": {"type": "ephemeral"}})


def test_hash_is_that_of_the_values() -> None:
    """Of two workers of one build the hashes agree, and any difference that the model could see makes another."""
    base: dict[str, Any] = {"name": "t", "model": "m", "system": "s", "tools": [find], "max_tokens": 5}
    base["options"] = {"a": 1, "b": 2}
    changes = {"name": "u", "model": "n", "system": "S", "tools": [find_too], "max_tokens": 6, "options": {"a": 1}}
    changes["cache_ttl"] = "1h"
    hashes = [Agent(**{**base, field: value}).definition().hash for field, value in changes.items()]
    own = Agent(**base).definition().hash
    assert len({own, *hashes}) == len(changes) + 1
    assert Agent(**{**base, "options": {"b": 2, "a": 1}}).definition().hash == own
    assert len(own) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "agent name must be"),
        ({"name": "two words"}, "two words"),
        ({"model": " "}, "agent t: model must be"),
        ({"model": None}, "agent t: model must be"),
        ({"max_tokens": 0}, "max_tokens must be an int >= 1, got 0"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"tools": [print]}, "put @tool on the function"),
        ({"tools": [find, find_too]}, "two tools are called 'find'"),
        ({"system": ["text"]}, "system must be text or a list of system blocks"),
        ({"system": "\ud800"}, "must be JSON"),
        ({"options": ["thinking"]}, "options must be a dict"),
        ({"options": {"model": "other"}}, "must not hold 'model': Runfold sets it"),
        ({"options": {"temperature": 0}}, "must not hold 'temperature': the API no longer accepts it"),
        ({"options": {"service_tier": object()}}, "must be JSON"),
        ({"options": {"x": float("nan")}}, "must be JSON"),
    ],
)
def test_agent_that_cannot_run_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Agent(**{"name": "t", "model": "m", **arguments})


# ---- apps


async def test_app_gives_each_agent_its_own_tools() -> None:
    app = App([Agent("one", "m", "", [find]), Agent("two", "m", "", [find_too])])
    wanted = request("find", '{"query":"a"}')
    assert [text(await app.tools(name).call(wanted)) for name in ("one", "two")] == ["A", "aaa"]
    assert app.definition("two") == app.agents["two"].definition()


async def test_T08_1_agent_that_a_deploy_removed_has_no_tools_and_says_so() -> None:
    """T08.1"""
    app = App([Agent("one", "m", "", [find])])
    result = await app.tools("{gone}").call(request("find", '{"query":"a"}'))
    assert result.status is ToolStatus.ERROR
    assert text(result) == "This worker has no agent '{gone}'. There is no tool 'find'. Available tools: none"
    assert app.definition("{gone}") is None


@pytest.mark.parametrize(
    ("agents", "message"),
    [([], "one Agent at least"), ([find], "expected an Agent"), ([Agent("a", "m")] * 2, "two agents are called 'a'")],
)
def test_app_that_cannot_be_served_is_refused(agents: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        App(agents)


# ---- loading


HEAD = "from runfold import Agent, App, tool\n"


@pytest.fixture(autouse=True)
def _own_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path: str, source: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(source)
    return path


@pytest.mark.parametrize("target", ["my.py", "my.py:app", "my.py:one", "./my.py:app", "my:app", "my", "pkg.inner:app"])
def test_app_is_found_in_file_and_module(target: str) -> None:
    for path in ("my.py", "pkg/inner.py"):
        write(path, HEAD + "one = Agent('one', 'm')\napp = also = App([one])\n")
    assert list(load_app(target).agents) == ["one"]


def test_single_agent_is_an_app() -> None:
    assert list(load_app(write("solo.py", HEAD + "solo = Agent('solo', 'm')\n")).agents) == ["solo"]


def test_file_may_import_its_neighbours_and_postpone_annotations() -> None:
    write("deep/words.py", "from pydantic import BaseModel\nclass Word(BaseModel):\n    text: str\n")
    source = "from __future__ import annotations\n" + HEAD + "import words\n"
    source += "@tool\ndef say(word: words.Word) -> str:\n    return word.text\nagent = Agent('a', 'm', '', [say])\n"
    agent = load_app(write("deep/queue.py", source)).agents["a"]
    assert agent.registry.names == ("say",)
    assert "$defs" in agent.definition().tools_json
    assert sys.modules["queue"].__file__ != str(Path("deep/queue.py").absolute())


TWO = HEAD + "a = Agent('a', 'm')\nb = Agent('b', 'm')\nlimit = 3\n"


@pytest.mark.parametrize(
    ("target", "source", "message"),
    [
        ("none.py:app", None, "there is no file .*none.py"),
        ("no_such_module:app", None, "there is no module 'no_such_module'"),
        ("no.such.module", None, "there is no module 'no'"),
        ("x.py:", HEAD, "expected file.py:name"),
        (":app", None, "expected file.py:name"),
        ("x.py:app.inner", HEAD, "expected file.py:name"),
        ("x.py:app", TWO, r"it has no 'app'; it has a \(Agent\), b \(Agent\)"),
        ("x.py:limit", TWO, "'limit' must be an App or an Agent, got int"),
        ("x.py", TWO, r"say which by x.py:name; it has a \(Agent\), b \(Agent\)"),
        ("x.py", HEAD, "it has no App and no Agent"),
        ("x.py", "import no_such_dependency\n", r"ModuleNotFoundError: No module named 'no_such_dependency' \(.*x.py, line 1\)"),
        ("x.py", HEAD + "\n1 / 0\n", r"ZeroDivisionError: division by zero \(.*x.py, line 3\)"),
        ("x.py", "def broken(:\n", "SyntaxError"),
        ("x.py", "raise SystemExit(3)\n", "SystemExit: 3"),
        ("x.py", HEAD + "Agent('', 'm')\n", "app x.py: agent name must be"),
    ],
)
def test_app_that_cannot_be_loaded_is_explained(target: str, source: str | None, message: str) -> None:
    if source is not None:
        write("x.py", source)
    with pytest.raises(ConfigError, match=message):
        load_app(target)


def test_error_in_the_users_code_is_the_cause() -> None:
    write("x.py", "{}['key']\n")
    with pytest.raises(ConfigError) as raised:
        load_app("x.py")
    assert isinstance(raised.value.__cause__, KeyError)
    assert "runfold_app_x" not in sys.modules


# ---- the package's front door


def test_core_can_be_imported_without_what_agents_need() -> None:
    code = "import sys, runfold.core.events; print(sorted({'pydantic', 'asyncio', 'runfold.tools'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_front_door_knows_its_names_only() -> None:
    import runfold

    assert [getattr(runfold, name).__name__ for name in runfold.__all__] == runfold.__all__
    with pytest.raises(AttributeError, match="no attribute 'Agents'"):
        runfold.Agents  # noqa: B018


def test_an_app_names_its_agents() -> None:
    """A run that asks for another one is told of these."""
    assert str(App([Agent("one", model="m"), Agent("two", model="m")])) == "one, two"
