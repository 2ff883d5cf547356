"""What `@tool` makes of a signature and a docstring, and what it refuses."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, ConfigDict, Field

from runfold.core.errors import ConfigError
from runfold.core.events import SideEffect
from runfold.ports import ToolPolicy
from runfold.tools import Registry, ToolContext, tool
from runfold.tools.docstring import describe


class Priority(Enum):
    LOW = "low"
    HIGH = "high"


class Period(BaseModel):
    start: date
    end: date | None = None


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    tag: str = ""


@tool
async def search(
    customer: str,
    priority: Priority = Priority.LOW,
    kind: Literal["bug", "wish"] = "bug",
    limit: Annotated[int, Field(ge=1, le=50, description="At most so many.")] = 10,
    period: Period | None = None,
    schema: dict[str, Any] | None = None,
    *,
    context: ToolContext,
) -> str:
    """Search tickets.

    Args:
        customer (str): Who wrote them,
            as in the CRM.
        limit: ignored, the annotation says it.

    Returns:
        One line per ticket.
    """
    return f"{customer} {priority} {kind} {limit} {period} {schema} {context.attempt}"


def test_definition_is_what_the_api_takes() -> None:
    assert search.definition() == {
        "name": "search",
        "description": "Search tickets.\n\nReturns:\n    One line per ticket.",
        "input_schema": {
            "type": "object",
            "additionalProperties": False,
            "required": ["customer"],
            "properties": {
                "customer": {"type": "string", "description": "Who wrote them, as in the CRM."},
                "priority": {"$ref": "#/$defs/Priority", "default": "low"},
                "kind": {"enum": ["bug", "wish"], "type": "string", "default": "bug"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10, "description": "At most so many."},
                "period": {"anyOf": [{"$ref": "#/$defs/Period"}, {"type": "null"}], "default": None},
                "schema": {"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}], "default": None},
            },
            "$defs": {
                "Priority": {"enum": ["low", "high"], "title": "Priority", "type": "string"},
                "Period": {
                    "type": "object",
                    "title": "Period",
                    "additionalProperties": False,
                    "required": ["start"],
                    "properties": {
                        "start": {"type": "string", "format": "date"},
                        "end": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None},
                    },
                },
            },
        },
    }


def test_tool_without_parameters_takes_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "noon"

    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.definition() == {"name": "now", "input_schema": empty}


def test_nested_model_that_declares_itself_open_stays_open() -> None:
    @tool
    def label(loose: Loose, period: Period) -> None: ...

    assert label.input_schema["$defs"]["Loose"]["additionalProperties"] is True
    assert "additionalProperties" not in label.input_schema["$defs"]["Period"], "pydantic's own default: unknown keys are ignored"
    assert label.arguments('{"loose":{"more":1},"period":{"start":"2026-01-01"}}')["loose"].model_extra == {"more": 1}


def test_default_that_json_cannot_hold_is_left_out_of_the_schema() -> None:
    @tool
    def price(amount: Decimal = Decimal("1.10"), unset: Any = object) -> None: ...

    assert set(price.input_schema["properties"]) == {"amount", "unset"}


def test_tool_is_still_its_function() -> None:
    @tool(name="add-numbers")
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert (add.name, add.__doc__, add(1), add(1, b=2)) == ("add-numbers", "Add.", 2, 3)


OLD_SPELLING = Optional[ToolContext]  # noqa: UP045  # it is another type than X | None


@pytest.mark.parametrize("hint", [ToolContext, ToolContext | None, OLD_SPELLING, Annotated[ToolContext, "which call"]])
def test_context_is_not_part_of_the_schema(hint: Any) -> None:
    def charge(amount: int, call=None) -> None: ...  # type: ignore[no-untyped-def]

    charge.__annotations__["call"] = hint
    made = tool(charge)
    assert made.context == "call"
    assert set(made.input_schema["properties"]) == {"amount"}


def test_list_of_contexts_is_an_ordinary_parameter() -> None:
    @tool
    def audit(calls: list[ToolContext]) -> None: ...

    assert (audit.context, set(audit.input_schema["properties"])) == (None, {"calls"})


# ---- refused at decoration, naming the parameter


def no_annotation(customer, limit: int) -> None: ...  # type: ignore[no-untyped-def]
def variadic(**customer: str) -> None: ...
def positional(customer: str, /) -> None: ...
def unresolved(customer: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def callback(limit: int, customer: Callable[[], None]) -> None: ...
def opaque(customer: pytest.Item, limit: int = 1) -> None: ...
def two_contexts(one: ToolContext, customer: ToolContext) -> None: ...


@pytest.mark.parametrize("function", [no_annotation, variadic, positional, unresolved, callback, opaque, two_contexts])
def test_parameter_without_a_schema_is_named(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=f"tool {function.__name__}, parameter 'customer'"):
        tool(function)


def noop() -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "tool name ''"),
        ({"name": "x" * 129}, "1 to 128"),
        ({"name": "list tickets"}, "list tickets"),
        ({"name": "noop\n"}, "tool name"),
        ({"side_effect": "writes"}, "side_effect must be 'none', 'read', 'write' or 'external', got 'writes'"),
        ({"idempotency": True}, "idempotency must be"),
        ({"idempotency": "required"}, "no parameter is a ToolContext"),
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": float("inf")}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"timeout": "2"}, "timeout must be"),
        ({"timeout": True}, "timeout must be"),
    ],
)
def test_option_that_cannot_be_used_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tool(**options)(noop)


def test_only_functions_become_tools() -> None:
    with pytest.raises(ConfigError, match="expects a function, got Tool"):
        tool(tool(noop))
    with pytest.raises(ConfigError, match="tool name '<lambda>'"):
        tool(lambda: None)


# ---- what the engine is told


@pytest.mark.parametrize(
    ("side_effect", "idempotency", "repeatable", "expected"),
    [
        ("none", "none", None, True),
        ("read", "none", None, True),
        ("write", "none", None, False),
        ("external", "none", None, False),
        ("write", "optional", None, True),
        ("external", "optional", None, True),
        ("write", "required", None, True),
        ("external", "required", None, True),
        ("none", "none", False, False),
        ("external", "none", True, True),
        ("external", "required", False, False),
    ],
)
def test_repeatable_follows_from_side_effect_and_idempotency(
    side_effect: Any, idempotency: Any, repeatable: bool | None, expected: bool
) -> None:
    @tool(side_effect=side_effect, idempotency=idempotency, repeatable=repeatable, parallel=False)
    def act(context: ToolContext) -> None: ...

    assert act.policy == ToolPolicy(SideEffect(side_effect.upper()), repeatable=expected, parallel=False)


def test_tool_that_does_not_say_is_taken_to_write_and_not_repeated() -> None:
    assert tool(noop).policy == ToolPolicy(SideEffect.WRITE, repeatable=False, parallel=True)


# ---- several tools


def test_registry_keeps_the_order_given() -> None:
    names = ["zebra", "ant", "mole"]
    registry = Registry([tool(name=name)(noop) for name in names])
    assert [definition["name"] for definition in registry.definitions()] == names == list(registry.names)


def test_registry_refuses_two_tools_of_one_name() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'noop'"):
        Registry([tool(noop), tool(noop)])


def test_registry_refuses_a_bare_function() -> None:
    with pytest.raises(ConfigError, match="put @tool on the function"):
        Registry([noop])  # type: ignore[list-item]


# ---- docstrings


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (None, ("", {})),
        ("One line.", ("One line.", {})),
        ("One.\n\n    Two.\n    ", ("One.\n\nTwo.", {})),
        ("X.\n\nArgs:\n  a: first\n  b (int): second:\n    more", ("X.", {"a": "first", "b": "second: more"})),
        ("X.\n\nArgs:\n  a:\n    below\n\n  b: gap\n\nRaises:\n  No.", ("X.\n\nRaises:\n  No.", {"a": "below", "b": "gap"})),
        ("X.\n\nArgs:", ("X.", {})),
        (":param a: Sphinx is left as it is", (":param a: Sphinx is left as it is", {})),
    ],
)
def test_docstring_is_split(docstring: str | None, expected: tuple[str, dict[str, str]]) -> None:
    assert describe(docstring) == expected
