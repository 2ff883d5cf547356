"""What an answer cost."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runfold.cli.app import app
from runfold.core.errors import ConfigError
from runfold.core.events import AgentDefinition, Usage
from runfold.log.datum import money, money_bytes
from runfold.model import DatedPrices, Prices
from runfold.model.modifiers import modifiers_of

TODAY = date(2026, 11, 30)
SHIPPED = Prices.load()
U1 = Usage(input_tokens=3, cache_write_5m_tokens=12304, output_tokens=550)
U2 = Usage(input_tokens=100, cache_write_5m_tokens=700, cache_read_tokens=200)
U4 = Usage(cache_write_5m_tokens=1000, cache_write_1h_tokens=1000)


@pytest.mark.parametrize(
    ("usage", "cost", "tokens"), [(U1, "0.054399", 12857), (U2, "0.002985", 1000), (U4, "0.009750", 2000), (Usage(), "0", 0)]
)
def test_b06_1_each_kind_of_token_has_its_price(usage: Usage, cost: str, tokens: int) -> None:
    assert SHIPPED.cost("claude-sonnet-4-6", usage, TODAY) == Decimal(cost)
    assert usage.total == tokens


def test_b06_3_sums_are_exact() -> None:
    cost = SHIPPED.cost("claude-sonnet-4-6", U1, TODAY)
    assert cost is not None
    assert sum([cost] * 1000, Decimal(0)) == Decimal("54.399")


def test_users_code_that_sets_a_precision_changes_no_cost() -> None:
    """As a module does that is imported with the agents: the whole process inherits it."""
    options = '{"inference_geo":"us"}'
    asked = AgentDefinition(
        name="a", model="claude-sonnet-4-6", max_tokens=1, system_json="[]", tools_json="[]", options_json=options, hash=""
    )
    prices, at = DatedPrices(SHIPPED), 1_796_000_000_000
    with localcontext(prec=2):
        cost, tariff = SHIPPED.cost("claude-sonnet-4-6", U1, TODAY), DatedPrices(Prices.load()).tariff(asked, at)
    assert cost == Decimal("0.054399")
    assert tariff == prices.tariff(asked, at)
    assert tariff is not None
    assert tariff.input == Decimal("0.000004125"), "3.75, and a tenth more"


def test_no_price_has_more_than_twelve_fractional_digits() -> None:
    cost = SHIPPED.cost("claude-haiku-5-5", Usage(cache_write_5m_tokens=1), TODAY)
    assert cost == Decimal("0.000000125")
    exponent = cost.as_tuple().exponent
    assert isinstance(exponent, int)
    assert exponent >= -12


def test_b08_an_unknown_price_is_not_zero() -> None:
    assert SHIPPED.cost("claude-unknown-9", U1, TODAY) is None
    assert SHIPPED.cost("", Usage(), TODAY) is None


def test_a_dated_model_id_costs_what_its_model_costs() -> None:
    assert SHIPPED.cost("claude-haiku-4-5-20251001", U1, TODAY) == SHIPPED.cost("claude-haiku-4-5", U1, TODAY)
    assert SHIPPED.cost("claude-haiku-4-5-2025", U1, TODAY) is None


@pytest.mark.parametrize(("on", "cost"), [(date(2026, 10, 6), "0.20"), (date(2026, 10, 7), "0.10"), (TODAY, "0.10")])
def test_a_price_holds_from_its_day_on(on: date, cost: str) -> None:
    assert SHIPPED.cost("claude-sonnet-5-5", Usage(cache_read_tokens=1_000_000), on) == Decimal(cost)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input_tokens=100_000, output_tokens=1_000_000), "0.51"),
        (Usage(input_tokens=100_001, output_tokens=1_000_000), "2.5500005"),
        (Usage(input_tokens=1, cache_read_tokens=100_000), "0.0050005"),  # cached tokens are part of the prompt
    ],
)
def test_a_long_prompt_prices_the_whole_request(usage: Usage, cost: str) -> None:
    assert SHIPPED.cost("claude-haiku-5-5", usage, TODAY) == Decimal(cost)


@pytest.mark.parametrize(
    ("modifiers", "cost"),
    [
        ({}, "24"),
        ({"service_tier": "standard", "speed": "standard", "inference_geo": "global"}, "24"),
        ({"service_tier": "batch"}, "12"),
        ({"inference_geo": "us"}, "26.4"),
        ({"inference_geo": "us", "service_tier": "batch"}, "13.2"),
        ({"speed": "fast"}, "48"),
        ({"speed": "fast", "inference_geo": "us"}, "52.8"),
        ({"speed": "ludicrous"}, None),
        ({"service_tier": "priority"}, None),
        ({"inference_geo": "moon"}, None),
        ({"brand_new": "1"}, None),
    ],
)
def test_modifiers_are_in_the_price_and_one_that_is_not_known_has_none(modifiers: dict[str, str], cost: str | None) -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    assert SHIPPED.cost("claude-opus-5-5", usage, TODAY, modifiers) == (cost and Decimal(cost))


def test_what_is_reported_beside_the_tokens_is_kept() -> None:
    reported = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_24h_input_tokens": 1},
        "output_tokens_details": {"thinking_tokens": 1},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "speed": None,
        "iterations": [],
    }
    assert modifiers_of(reported) == {"service_tier": "standard", "ephemeral_24h_input_tokens": "1"}
    assert modifiers_of({"input_tokens": 1}) is None
    assert modifiers_of({"odd": "\ud800\n" + "x" * 1_000}) == {"odd": "  " + "x" * 98}


# ---- the most that a call may cost

AGENT = AgentDefinition(
    name="a", model="claude-opus-5-5", max_tokens=1, system_json="[]", tools_json="[]", options_json="{}", hash="0"
)
NOW = 1_796_000_000_000  # 2026-11-30
MILLION = Decimal(1_000_000)


@pytest.mark.parametrize(
    ("changes", "tariff"),
    [
        ({"cache_ttl": "off"}, (4, 20)),
        ({"cache_ttl": "5m"}, (5, 20)),
        ({"cache_ttl": "1h"}, (8, 20)),
        ({"options_json": '{"speed":"fast"}'}, (10, 40)),
        ({"options_json": '{"inference_geo":"us"}', "cache_ttl": "off"}, (Decimal("4.4"), 22)),
        ({"model": "claude-haiku-5-5", "cache_ttl": "off"}, (Decimal("0.5"), Decimal("2.5"))),  # its prompt may be a long one
        ({"model": "claude-unknown-9"}, None),
        ({"options_json": '{"inference_geo":"moon"}'}, None),
    ],
)
def test_the_tariff_is_what_no_call_of_the_agent_exceeds(changes: dict[str, Any], tariff: tuple[Any, Any] | None) -> None:
    found = DatedPrices(SHIPPED).tariff(replace(AGENT, **changes), NOW)
    assert (found and (found.input * MILLION, found.output * MILLION)) == tariff


RATES = '"input": "1", "cache_write_5m": "0", "cache_write_1h": "0", "cache_read": "0", "output": "0"'


def test_a_file_of_ones_own_adds_and_replaces_models(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(f'{{"models": {{"claude-scripted": [{{{RATES}}}], "claude-opus-5": [{{{RATES}}}]}}}}')
    prices = Prices.load(path)
    million = Usage(input_tokens=1_000_000)
    assert prices.cost("claude-scripted", million, TODAY) == 1
    assert prices.cost("claude-opus-5", million, TODAY) == 1
    assert prices.cost("claude-opus-5-5", million, TODAY) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"models": {"m": [{"input": "1"}]}}',
        '{"models": {"m": [{' + RATES.replace('"1"', "1") + "}]}}",
        '{"models": {"m": [{' + RATES.replace('"1"', '"-1"') + "}]}}",
        '{"models": {"m": [{' + RATES.replace('"1"', '"1.1234567"') + "}]}}",
        '{"models": {"m": [{' + RATES.replace('"1"', '"NaN"') + "}]}}",
        '{"models": {"m": [{' + RATES + ', "effective_form": "2026-01-01"}]}}',
        '{"models": {"m": [{' + RATES + ', "effective_from": "soon"}]}}',
        '{"models": {"m": [{' + RATES + ', "up_to_prompt_tokens": "9"}]}}',
        '{"models": {"m": [{' + RATES + ', "up_to_prompt_tokens": true}]}}',
        '{"models": {"m": [{' + RATES + ', "up_to_prompt_tokens": -5}]}}',
        "[" * 100_000,
        '{"models": {"m": []}}',
    ],
)
def test_a_price_list_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.json"):
        Prices.load(path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            '{"models": {"good": [{' + RATES + '}], "bad": [{' + RATES + '}, {"input": "1"}]}}',
            r"model 'bad', price 2: no 'cache_write_5m'",
        ),
        ('{"models": {"bad": {}}}', "model 'bad': expected a list of at least one price"),
        ('{"models": {}, "modifiers": {"service_tier": {"batch": 0.5}}}', "modifier 'service_tier': expected an amount"),
        ('{"models": {"bad": [{' + RATES + ', "speed": 1}]}}', "model 'bad', price 1: expected a name, got 1"),
        ("{", "the file: "),
        ("{}", "the file: no 'models'"),
        ("[]", "the file: expected an object, got a list"),
        ('{"models": {}, "modifier": {}}', "unknown keys: 'modifier', expected some of checked, models, modifiers, unit"),
        ('{"Models": {}, "modifers": {}}', "the file: unknown keys: 'Models', 'modifers', expected some of"),
    ],
)
def test_a_mistake_is_named_by_where_it_stands(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        Prices.load(path)


def at_the_rate(rate: str, factors: dict[str, str]) -> str:
    rates = {"input": rate, "cache_write_5m": "0", "cache_write_1h": "0", "cache_read": "0", "output": "0"}
    return json.dumps({"models": {"m": [rates]}, "modifiers": {"service_tier": {"standard": "1"}, "inference_geo": factors}})


@pytest.mark.parametrize(
    ("rate", "factors", "found"),
    [
        ("1000000.000001", {}, "model 'm', price 1: 1000000.000001, which modifiers multiply by up to 1"),
        ("999999999", {"us": "0.001"}, "model 'm', price 1: 999999999, which modifiers multiply by up to 1"),
        ("2000", {"us": "500.1"}, "model 'm', price 1: 2000, which modifiers multiply by up to 500.1"),
        ("0", {"us": "999999999"}, "which modifiers multiply by up to 999999999"),  # the shipped prices
    ],
)
def test_a_rate_beyond_sense_is_refused(tmp_path: Path, rate: str, factors: dict[str, str], found: str) -> None:
    """The log holds no amount of thirteen digits: a start or an answer that costs as much would take its worker down."""
    path = tmp_path / "prices.json"
    path.write_text(at_the_rate(rate, factors))
    with pytest.raises(ConfigError, match=f"{found}; expected at most 1000000 US dollars per million tokens"):
        Prices.load(path)


@pytest.mark.parametrize(("rate", "factor"), [("1000000", "1"), ("2000", "500")])
def test_what_the_dearest_tokens_cost_can_be_written_down(tmp_path: Path, rate: str, factor: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(at_the_rate(rate, {"us": factor}))
    usage = Usage(input_tokens=10**12 - 1)
    cost = Prices.load(path).cost("m", usage, TODAY, {"inference_geo": "us"})
    assert cost == 10**12 - 1
    assert money(money_bytes(cost)) == cost


def test_what_is_reserved_at_fine_prices_is_no_finer_than_the_log_holds(tmp_path: Path) -> None:
    """A start that cannot be written down would take the worker with it, again and again."""
    path = tmp_path / "prices.json"
    rates = dict.fromkeys(("input", "cache_write_5m", "cache_write_1h", "cache_read", "output"), "0.123457")
    path.write_text(json.dumps({"models": {"m": [rates]}, "modifiers": {"inference_geo": {"us": "1.125"}}}))
    tariff = DatedPrices(Prices.load(path)).tariff(replace(AGENT, model="m", options_json='{"inference_geo":"us"}'), NOW)
    assert tariff is not None
    assert tariff.output == Decimal("0.000000138890"), "rounded up: at most that is spent"
    assert money(money_bytes(tariff.cost(123, 999))) == tariff.cost(123, 999)


def test_modifiers_of_ones_own_replace_the_shipped_ones_by_name(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"models": {}, "modifiers": {"service_tier": {"standard": "1", "priority": "1.5"}}}')
    prices, usage = Prices.load(path), Usage(output_tokens=1_000_000)
    assert prices.cost("claude-opus-5-5", usage, TODAY, {"service_tier": "priority"}) == 30
    assert prices.cost("claude-opus-5-5", usage, TODAY, {"service_tier": "batch"}) is None
    assert prices.cost("claude-opus-5-5", usage, TODAY, {"inference_geo": "us"}) == 22


def test_doctor_says_whether_a_price_list_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"models": {"bad": []}}')
    told = CliRunner(env={"RUNFOLD_PRICES": str(path)}).invoke(app, ["doctor", "--json"])
    (prices,) = (check for check in json.loads(told.stdout) if check["name"] == "prices")
    assert not prices["ok"]
    assert "model 'bad'" in prices["detail"]
    assert told.exit_code == 1


def test_a_price_list_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        Prices.load(tmp_path / "none.json")
