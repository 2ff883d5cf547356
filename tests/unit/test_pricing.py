"""What an answer cost."""

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from runfold.core.errors import ConfigError
from runfold.core.events import Usage
from runfold.model import Prices

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
        '{"models": {"m": []}}',
    ],
)
def test_a_price_list_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.json"):
        Prices.load(path)


def test_a_price_list_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        Prices.load(tmp_path / "none.json")
