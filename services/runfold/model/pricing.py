"""What an answer cost: dated prices, exact decimals. An unknown price is None, never zero."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

from runfold.core.errors import ConfigError
from runfold.core.events import Usage

_DATED = re.compile(r"-\d{8}$")  # of a model id: claude-haiku-4-5-20251001 costs what claude-haiku-4-5 costs
_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")  # six digits, so that the price of one token has no more than twelve


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens."""

    input: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    cache_read: Decimal
    output: Decimal

    def cost(self, usage: Usage) -> Decimal:
        total = (
            usage.input_tokens * self.input
            + usage.cache_write_5m_tokens * self.cache_write_5m
            + usage.cache_write_1h_tokens * self.cache_write_1h
            + usage.cache_read_tokens * self.cache_read
            + usage.output_tokens * self.output
        )
        return total.scaleb(-6)


@dataclass(frozen=True, slots=True)
class Price:
    """Rates, and when they hold: from a day on, for prompts up to a length (cached tokens included; the whole request is priced
    by it)."""

    rates: Rates
    effective_from: date = date.min
    up_to_prompt_tokens: int | None = None

    def holds(self, on: date, prompt: int) -> bool:
        return self.effective_from <= on and (self.up_to_prompt_tokens is None or prompt <= self.up_to_prompt_tokens)


class Prices:
    """A price list. Models it does not name have no price."""

    def __init__(self, prices: Mapping[str, list[Price]]) -> None:
        self._prices = {model: sorted(listed, key=_precedence) for model, listed in prices.items()}

    @classmethod
    def load(cls, path: Path | None = None) -> "Prices":
        """The list shipped with Runfold; models that the file at ``path`` names are priced by that file alone.

        Raises `ConfigError` when the file cannot be read or used."""
        listed = _parse((resources.files("runfold.model") / "prices.json").read_text("utf-8"), "prices.json")
        if path is not None:
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"The price list {path} cannot be read: {error}") from error
            listed |= _parse(text, str(path))
        return cls(listed)

    def cost(self, model: str, usage: Usage, on: date) -> Decimal | None:
        """US dollars for one answer of ``model`` on a day, with at most 12 fractional digits; None: no known price."""
        prompt = usage.total - usage.output_tokens
        listed = self._prices.get(model) or self._prices.get(_DATED.sub("", model), [])
        return next((price.rates.cost(usage) for price in listed if price.holds(on, prompt)), None)


def _precedence(price: Price) -> tuple[int, float]:
    """Newest first; of one day, the shortest prompts first."""
    limit = price.up_to_prompt_tokens
    return -price.effective_from.toordinal(), float("inf") if limit is None else limit


def _parse(text: str, source: str) -> dict[str, list[Price]]:
    try:
        models = json.loads(text)["models"]
        return {model: _prices(entries) for model, entries in models.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"The price list {source} cannot be used: {error!r}. The shipped prices.json is an example.") from error


def _prices(entries: list[dict[str, Any]]) -> list[Price]:
    if not entries:
        raise ValueError("a model without a price: leave it out, or give it one")
    return [_price(entry) for entry in entries]


def _price(entry: dict[str, Any]) -> Price:
    entry = dict(entry)
    price = Price(
        Rates(**{field.name: _amount(entry.pop(field.name)) for field in fields(Rates)}),
        effective_from=date.fromisoformat(entry.pop("effective_from", date.min.isoformat())),
        up_to_prompt_tokens=_tokens(entry.pop("up_to_prompt_tokens", None)),
    )
    if entry:
        raise ValueError(f"unknown fields {', '.join(sorted(entry))}")
    return price


def _amount(value: object) -> Decimal:
    if not isinstance(value, str) or not _AMOUNT.fullmatch(value):
        raise ValueError(f'expected an amount like "2.50", at most 6 fractional digits, got {value!r}')
    return Decimal(value)


def _tokens(value: object) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise ValueError(f"expected a number of tokens, got {value!r}")
