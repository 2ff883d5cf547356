"""The grammar of POST /api/runs: what is in it is accepted as meant, everything else is refused by name."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runfold.api import strict_json
from runfold.api.problems import Problem
from runfold.api.submission import Submission
from runfold.core.events import RunRequested
from tests.unit.api_client import problem, world

WHOLE = ["maxTokens", "tokenBudget", "timeoutSeconds", "maxSteps", "progressTimeoutSeconds"]
NUMBERS = [*WHOLE, "costCeilingUsd"]
NONSENSE = [
    "-1",
    "0",
    "-0.0",
    "true",
    "false",
    '"100"',
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1e99999999999999999999999",
    str(2**63),
    str(10**400),
    "1" + "0" * 5000,
    "[1]",
    "{}",
]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: text[:12])
async def test_a_nonsense_number_is_refused_by_the_name_of_its_field(field: str, text: str) -> None:
    """U03.1, U03.3"""
    async with world() as here:
        problem(await _post(here.client, f'{{"input":"go","{field}":{text}}}'), 422, field)
        assert not here.sent


@pytest.mark.parametrize("field", WHOLE)
@pytest.mark.parametrize("text", ["1.5", "1.0", "1e2", "1" * 40])
async def test_an_integer_has_no_fraction_and_no_exponent(field: str, text: str) -> None:
    """U03.1"""
    async with world() as here:
        problem(await _post(here.client, f'{{"input":"go","{field}":{text}}}'), 422, field)
        assert not here.sent


@pytest.mark.parametrize("field", NUMBERS)
async def test_null_is_the_default_and_not_zero(field: str) -> None:
    async with world() as here:
        answer = await _post(here.client, f'{{"input":"go","{field}":null}}')
        assert answer.status_code == 202
        [command] = here.sent
        assert isinstance(command, RunRequested)
        assert command.limits == RunRequested(run_id="", agent="", input="").limits
        assert command.max_tokens is None


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("maxTokens", 128_000),
        ("tokenBudget", 10**12),
        ("timeoutSeconds", 366 * 86400),
        ("maxSteps", 100_000),
        ("progressTimeoutSeconds", 366 * 86400),
    ],
)
def test_the_largest_value_is_the_documented_one(field: str, most: int) -> None:
    Submission.read({"input": "go", field: most})
    assert _refused({"input": "go", field: most + 1}).field == field


@pytest.mark.parametrize("text", ["0.000000000001", "999999999999.999999999999", "1e3", "5", "0.10000000000000000000", "1E-12"])
def test_a_legal_amount_is_kept_exactly(text: str) -> None:
    submission = Submission.read(strict_json.parse(f'{{"input":"go","costCeilingUsd":{text}}}'.encode()))
    assert submission.cost_ceiling_usd == Decimal(text)
    assert submission.command("x").limits.cost_ceiling == Decimal(text)


@pytest.mark.parametrize("text", ["0.0000000000001", "1000000000000", "1e12", "1e-13", "0.1234567890123"])
def test_an_amount_that_money_columns_cannot_hold_is_refused(text: str) -> None:
    body = strict_json.parse(f'{{"input":"go","costCeilingUsd":{text}}}'.encode())
    assert _refused(body).field == "costCeilingUsd"


@pytest.mark.parametrize("key", ["tokenbudget", "token_budget", "costCeiling", "maxStep", "", "x" * 100_000, "\ud800"])
async def test_an_unknown_key_is_refused(key: str) -> None:
    """U03.2: a misspelt limit would be no limit."""
    async with world() as here:
        error = problem(await _post(here.client, json.dumps({"input": "go", key: 5})), 422, key[:60])
        assert "tokenBudget" in error["message"] or "did you mean" in error["message"]
        assert not here.sent


@pytest.mark.parametrize("field", NUMBERS)
async def test_a_repeated_key_is_refused(field: str) -> None:
    """U03.2"""
    async with world() as here:
        problem(await _post(here.client, f'{{"input":"go","{field}":5,"{field}":5}}'), 422, field)
        problem(await _post(here.client, '{"input":"go","metadata":{"a":"b","a":"c"}}'), 422, "a")
        assert not here.sent


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": " \n\u3000"}, "input"),
        ({"input": 7}, "input"),
        ({"input": "a\0b"}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": "go", "agent": ""}, "agent"),
        ({"input": "go", "agent": "a\nb"}, "agent"),
        ({"input": "go", "agent": "x" * 201}, "agent"),
        ({"input": "go", "tenant": " acme"}, "tenant"),
        ({"input": "go", "model": ["x"]}, "model"),
        ({"input": "go", "metadata": "x"}, "metadata"),
        ({"input": "go", "metadata": {"a": 1}}, "metadata"),
        ({"input": "go", "metadata": {"": "a"}}, "metadata"),
        ({"input": "go", "metadata": {"a": "\0"}}, "metadata"),
        ({"input": "go", "metadata": {"a": "x" * 513}}, "metadata"),
        ({"input": "go", "metadata": {str(n): "a" for n in range(51)}}, "metadata"),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_texts_are_checked(body: dict[str, Any], field: str) -> None:
    async with world() as here:
        problem(await _post(here.client, json.dumps(body)), 422, field)
        assert not here.sent


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"input"',
        b'{"input":"go"',
        b'{"input":"go"}x',
        b'\xef\xbb\xbf{"input":"go"}',
        b'{"input":"\xff"}',
        '{"input":"go"}'.encode("utf-16"),
        b"[" * 10_000 + b"]" * 10_000,
        b'{"metadata":' * 10_000 + b"1" + b"}" * 10_000,
        b"[" * 900_000,
    ],
    ids=lambda body: ascii(body)[:20],
)
async def test_what_is_no_json_object_is_422(body: bytes) -> None:
    """U01.3 V2 among them: 10,000 deep."""
    async with world() as here:
        problem(await _post(here.client, body), 422)
        assert not here.sent


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_only_what_is_declared_as_json_is_read(content_type: str | None) -> None:
    """A web page can make a browser send the other types here without asking."""
    async with world() as here:
        headers = {"content-type": content_type} if content_type else {}
        problem(await here.client.post("/api/runs", content=b'{"input":"go"}', headers=headers), 415)
        assert not here.sent


async def test_a_charset_beside_the_type_is_fine() -> None:
    async with world() as here:
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await here.client.post("/api/runs", content='{"input":"grüß"}'.encode(), headers=headers)).status_code == 202


# ---- any JSON at all

FIELDS = [*NUMBERS, "onBudget", "input", "agent", "model", "tenant", "metadata"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
LIKELY = st.fixed_dictionaries(
    {"input": st.text(min_size=1)},
    optional={
        **{field: st.integers(-1, 200_000) for field in WHOLE},
        "costCeilingUsd": st.integers(0, 5) | st.floats(0, 10),
        **{field: st.text(min_size=1, max_size=5) for field in ("agent", "model", "tenant")},
        "onBudget": st.sampled_from(["SUSPEND", "FAIL", "fail", ""]),
        "metadata": st.dictionaries(st.text(), st.text(), max_size=3),
    },
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@example({"input": "go"})
@example({"input": "go", "costCeilingUsd": 1e-12})
@example({"input": "go", "onBudget": "FAIL"})
@given(VALUES | LIKELY | st.dictionaries(st.sampled_from(FIELDS), VALUES))
async def test_any_json_is_accepted_if_the_grammar_has_it_and_refused_otherwise(body: object) -> None:
    async with world() as here:
        answer = await _post(here.client, json.dumps(body))
        if _in_grammar(body):
            assert answer.status_code == 202, answer.text
            assert len(here.sent) == 1
        else:
            problem(answer, 422)
            assert not here.sent


@settings(deadline=None, max_examples=100)
@given(st.binary())
async def test_any_bytes_are_refused_politely(body: bytes) -> None:
    async with world() as here:
        problem(await _post(here.client, body), 422)


def _in_grammar(body: object) -> bool:
    """The documented grammar, written down a second time."""
    if not isinstance(body, dict) or not set(body) <= set(FIELDS):
        return False
    text = body.get("input")
    return (
        isinstance(text, str)
        and text.strip() != ""
        and _storable(text)
        and all(body.get(field) is None or _whole(body[field], field) for field in WHOLE)
        and (body.get("costCeilingUsd") is None or _amount(body["costCeilingUsd"]))
        and body.get("onBudget") in (None, "SUSPEND", "FAIL")
        and all(body.get(field) is None or _named(body[field]) for field in ("agent", "model", "tenant"))
        and (body.get("metadata") is None or _labels(body["metadata"]))
    )


def _whole(value: object, field: str) -> bool:
    most = {"maxTokens": 128_000, "tokenBudget": 10**12, "maxSteps": 100_000}.get(field, 366 * 86400)
    return type(value) is int and 1 <= value <= most


def _amount(value: object) -> bool:
    if type(value) not in (int, float) or value != value:
        return False
    amount = Decimal(json.dumps(value))
    return 0 < amount < 10**12 and amount * 10**12 == int(amount * 10**12)


def _named(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable() and value == value.strip()


def _labels(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 50
        and all(1 <= len(key) <= 64 and _storable(key) for key in value)
        and all(isinstance(text, str) and len(text) <= 512 and _storable(text) for text in value.values())
    )


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def test_a_digest_is_of_what_the_body_means() -> None:
    def digest(text: str) -> str:
        return Submission.read(strict_json.parse(text.encode())).digest

    one = digest('{"input":"go","costCeilingUsd":1.50,"metadata":{"a":"b","c":"d"}}')
    same = '{"metadata":{"c":"d","a":"b"}, "costCeilingUsd":1.5, "tenant":null, "agent":"default", "input":"\\u0067o"}'
    assert one == digest(same)
    assert one != digest('{"input":"go","costCeilingUsd":1.51,"metadata":{"a":"b","c":"d"}}')


def test_the_schema_that_openapi_shows_names_every_field() -> None:
    schema = Submission.model_json_schema()
    assert set(schema["properties"]) == set(FIELDS)
    assert schema["additionalProperties"] is False
    assert all("description" in field for field in schema["properties"].values())


def _refused(body: object) -> Problem:
    with pytest.raises(Problem) as caught:
        Submission.read(body)
    return caught.value


async def _post(client: Any, body: bytes | str) -> Any:
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return await client.post("/api/runs", content=content, headers={"content-type": "application/json"})
