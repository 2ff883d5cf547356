"""T06: invalid input never reaches a tool's body, and the answer names the field."""

from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from typing_extensions import TypedDict

from runfold.core.events import ToolStatus
from runfold.tools import tool

from .tool_calls import call, text

bodies_run: list[dict[str, Any]] = []


class Size(Enum):
    S = 1
    L = 2


class Address(BaseModel):
    city: str
    zip: int = 0


class Item(TypedDict):
    sku: str


@tool(side_effect="none")
async def order(
    customer: str,
    count: int = 1,
    price: float = 1.0,
    size: Size = Size.S,
    to: Address | None = None,
    items: list[Item] | None = None,
    extra: dict[str, Any] | None = None,
) -> str:
    bodies_run.append(locals())
    return "ordered"


@pytest.fixture(autouse=True)
def _forget() -> None:
    bodies_run.clear()


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


INVALID = {
    # not an object
    '"str"': 'it must be a JSON object, got "str"',
    r'"{\"a\":1"': "it must be a JSON object",
    "[]": "it must be a JSON object, got []",
    "null": "it must be a JSON object, got null",
    "17": "it must be a JSON object, got 17",
    # not JSON
    '{"a":1': "it is not JSON",
    "": "it is not JSON",
    '{"customer":"x"} {}': "it is not JSON",
    '{"count":' + "9" * 5000 + "}": "it is not JSON",
    # fields
    "{}": "field 'customer': required, but missing",
    '{"customer":"x","colour":"red"}': "field 'colour': there is no such field",
    '{"customer":"x","__proto__":{"admin":true}}': "field '__proto__': this key is not allowed",
    '{"customer":"x","extra":{"a":[{"__proto__":1}]}}': "field 'extra.a[0].__proto__': this key is not allowed",
    '{"customer":7}': "field 'customer': Input should be a valid string, got 7",
    '{"customer":null}': "field 'customer': Input should be a valid string, got null",
    '{"customer":"x","count":"5"}': "field 'count': Input should be a valid integer, got \"5\"",
    '{"customer":"x","count":5.0}': "field 'count': Input should be a valid integer, got 5.0",
    '{"customer":"x","count":true}': "field 'count': Input should be a valid integer, got true",
    '{"customer":"x","size":3}': "field 'size': Input should be 1 or 2, got 3",
    '{"customer":"x","to":{"city":1}}': "field 'to.city': Input should be a valid string, got 1",
    '{"customer":"x","to":{"city":"y","street":"z"}}': "field 'to.street': there is no such field",
    '{"customer":"x","items":[{"sku":"a"},{"sku":"b","n":1}]}': "field 'items[1].n': there is no such field",
    '{"customer":"x","price":1e400}': "field 'price': expected a finite number",
    '{"customer":"x","price":NaN}': "field 'price': expected a finite number",
    '{"customer":"x","extra":{"deep":[1,-1e400]}}': "field 'extra.deep[1]': expected a finite number",
    r'{"customer":"\ud83d"}': "field 'customer': expected Unicode text",
    '{"customer":"x","extra":{"deep":' + nested(100) + "}}": "nested deeper than 64 levels",
    '{"customer":' + nested(100) + "}": "field 'customer",
    '{"customer":' + nested(100_000) + "}": "nested deeper than 64 levels",
}


@pytest.mark.parametrize("input_json", INVALID, ids=lambda text: text[:40])
async def test_T06_1_invalid_input_does_not_run_the_body_and_names_the_field(input_json: str) -> None:
    """T06.1"""
    result = await call(order, input_json)
    assert result.status is ToolStatus.ERROR
    assert INVALID[input_json] in text(result)
    assert "The fields are: customer (required), count, price" in text(result)
    assert len(text(result)) < 600
    assert not bodies_run


async def test_T06_3_corrected_call_runs_once() -> None:
    """T06.3"""
    await call(order, '{"customer":7}')
    corrected = '{"customer":"acme","count":2,"price":3,"size":2,"to":{"city":"Ulm"},"items":[{"sku":"a"}],"extra":{"k":null}}'
    result = await call(order, corrected)
    assert (result.status, text(result)) == (ToolStatus.DONE, "ordered")
    (arguments,) = bodies_run
    assert list(arguments.values()) == ["acme", 2, 3.0, Size.L, Address(city="Ulm"), [{"sku": "a"}], {"k": None}]


async def test_every_fault_is_told_but_not_without_end() -> None:
    told = text(await call(order, '{"count":"a",' + ",".join(f'"x{n}":1' for n in range(50)) + "}"))
    assert "'customer'" in told
    assert "'count'" in told
    assert "and 44 more" in told


async def test_json_forms_of_types_that_json_lacks_are_read() -> None:
    @tool(side_effect="none")
    def book(day: date, amount: Decimal, tags: set[str], raw: bytes) -> str:
        return f"{day:%Y} {amount} {sorted(tags)} {raw!r}"

    result = await call(book, '{"day":"2026-11-30","amount":"1.10","tags":["b","a","a"],"raw":"x"}')
    assert text(result) == "2026 1.10 ['a', 'b'] b'x'"


async def test_type_whose_own_validator_breaks_is_an_error_too() -> None:
    def broken(value: str) -> str:
        raise KeyError(value)

    @tool(side_effect="none")
    def look(key: Annotated[str, AfterValidator(broken)]) -> str:
        return key

    result = await call(look, '{"key":"k"}')
    assert result.status is ToolStatus.ERROR
    assert "KeyError" in text(result)


async def test_parameter_may_have_any_name() -> None:
    @tool(side_effect="none")
    def odd(schema: str, model_config: int, _private: int, json: str = "j", self: str = "s") -> str:
        return f"{schema} {model_config} {_private} {json} {self}"

    assert text(await call(odd, '{"schema":"a","model_config":1,"_private":2,"self":"me"}')) == "a 1 2 j me"
