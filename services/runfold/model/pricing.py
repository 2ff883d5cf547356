"""What an answer cost, and what the next may: dated prices, exact decimals. An unknown price is None, never zero."""

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from datetime import date
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any

from runfold.core.errors import ConfigError
from runfold.core.events import Usage
from runfold.core.money import EXACT

STANDARD = "standard"

_DATED = re.compile(r"-\d{8}$")  # of a model id: claude-haiku-4-5-20251001 costs what claude-haiku-4-5 costs
_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")  # six digits, so that the price of one token has no more than twelve
FINEST = Decimal(1).scaleb(-12)  # what the log can hold
HIGHEST = Decimal(1_000_000)  # US dollars per million tokens, modified: at a dollar a token the log can hold what 10^12 cost

Factors = Mapping[str, Mapping[str, Decimal]]  # by modifier and its value: what multiplies the whole cost


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens."""

    input: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    cache_read: Decimal
    output: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """US dollars."""
        with localcontext(EXACT):
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
    """Rates, and when they hold: from a day on, at a speed, for prompts up to a length (cached tokens included; the whole request
    is priced by it)."""

    rates: Rates
    effective_from: date = date.min
    up_to_prompt_tokens: int | None = None
    speed: str = STANDARD

    def holds(self, prompt: int) -> bool:
        return self.up_to_prompt_tokens is None or prompt <= self.up_to_prompt_tokens


class Prices:
    """A price list. What it does not name has no price: a model, a speed, a modifier, a value of one."""

    def __init__(self, prices: Mapping[str, list[Price]], factors: Factors) -> None:
        self._prices = {model: sorted(listed, key=_precedence) for model, listed in prices.items()}
        self._factors = factors

    @classmethod
    def load(cls, path: Path | None = None) -> "Prices":
        """The list shipped with Runfold; models and modifiers that the file at ``path`` names are priced by that file alone.

        Raises `ConfigError`, which names the entry, when the file cannot be read or used."""
        models, factors = _parse((resources.files("runfold.model") / "prices.json").read_text("utf-8"), "prices.json")
        if path is not None:
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"The price list {path} cannot be read: {error}") from error
            own_models, own_factors = _parse(text, str(path))
            models, factors = models | own_models, factors | own_factors
            _check_bound(models, factors, str(path))
        return cls(models, factors)

    @property
    def models(self) -> frozenset[str]:
        """Those that have a price."""
        return frozenset(self._prices)

    def cost(self, model: str, usage: Usage, on: date, modifiers: Mapping[str, str] | None = None) -> Decimal | None:
        """US dollars for one answer of ``model`` on a day, with at most 12 fractional digits; None: no known price.

        ``modifiers``: what the API reports with the usage, see `runfold.model.modifiers`."""
        prompt, modifiers = usage.total - usage.output_tokens, modifiers or {}
        listed, factor = self._in_force(model, on, modifiers), self._factor(modifiers)
        rates = next((price.rates for price in listed if price.holds(prompt)), None)
        if rates is None or factor is None:
            return None
        return EXACT.multiply(rates.cost(usage), factor).quantize(FINEST, ROUND_CEILING, EXACT)

    def highest(self, model: str, on: date, modifiers: Mapping[str, str]) -> Rates | None:
        """The rates of a day that no answer with these modifiers exceeds, however long its prompt; None: no known price."""
        listed, factor = self._in_force(model, on, modifiers), self._factor(modifiers)
        if not listed or factor is None:
            return None
        names = [field.name for field in fields(Rates)]
        return Rates(**{name: EXACT.multiply(factor, max(getattr(price.rates, name) for price in listed)) for name in names})

    def _in_force(self, model: str, on: date, modifiers: Mapping[str, str]) -> list[Price]:
        """Those that an answer of that day can have, by `_precedence`: what stands behind a price for all prompts never holds."""
        listed = self._prices.get(model) or self._prices.get(_DATED.sub("", model), [])
        speed = modifiers.get("speed", STANDARD)
        begun = [price for price in listed if price.effective_from <= on and price.speed == speed]
        last = next((n for n, price in enumerate(begun, 1) if price.up_to_prompt_tokens is None), len(begun))
        return begun[:last]

    def _factor(self, modifiers: Mapping[str, str]) -> Decimal | None:
        """What multiplies the cost; None where a modifier is not in the list."""
        product = Decimal(1)
        for name, value in modifiers.items():
            factor = Decimal(1) if name == "speed" else self._factors.get(name, {}).get(value)
            if factor is None:
                return None
            product = EXACT.multiply(product, factor)
        return product


def _precedence(price: Price) -> tuple[int, float]:
    """Newest first; of one day, the shortest prompts first."""
    limit = price.up_to_prompt_tokens
    return -price.effective_from.toordinal(), float("inf") if limit is None else limit


# ---- the file

_KEYS = frozenset({"models", "modifiers", "unit", "checked"})  # the latter two are for people


def _parse(text: str, source: str) -> tuple[dict[str, list[Price]], dict[str, dict[str, Decimal]]]:
    place = "the file"
    try:
        listed = _known(json.loads(text))
        models: dict[str, list[Price]] = {}
        for model, entries in listed["models"].items():
            place = f"model {model!r}"
            models[model] = []
            for number, entry in enumerate(_at_least_one_price(entries), 1):
                place = f"model {model!r}, price {number}"
                models[model].append(_price(entry))
        factors: dict[str, dict[str, Decimal]] = {}
        for name, values in listed.get("modifiers", {}).items():
            place = f"modifier {name!r}"
            factors[name] = {value: _amount(factor) for value, factor in values.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else error
        hint = "The shipped prices.json is an example."
        raise ConfigError(f"The price list {source} cannot be used: {place}: {said}. {hint}") from error
    return models, factors


def _known(listed: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(listed, dict):
        raise ValueError(f"expected an object, got a {type(listed).__name__}")
    if unknown := sorted(listed.keys() - _KEYS):
        raise ValueError(f"unknown keys: {', '.join(map(repr, unknown))}, expected some of {', '.join(sorted(_KEYS))}")
    return listed


def _at_least_one_price(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not entries:
        raise ValueError("expected a list of at least one price: leave the model out, or give it one")
    return entries


def _price(entry: dict[str, Any]) -> Price:
    entry = dict(entry)
    price = Price(
        Rates(**{field.name: _amount(entry.pop(field.name)) for field in fields(Rates)}),
        effective_from=date.fromisoformat(entry.pop("effective_from", date.min.isoformat())),
        up_to_prompt_tokens=_tokens(entry.pop("up_to_prompt_tokens", None)),
        speed=_name(entry.pop("speed", STANDARD)),
    )
    if entry:
        raise ValueError(f"unknown fields {', '.join(sorted(entry))}")
    return price


def _check_bound(models: Mapping[str, list[Price]], factors: Factors, source: str) -> None:
    """Raises `ConfigError` for a rate that modifiers can raise above `HIGHEST`."""
    factor = reduce(EXACT.multiply, (max([Decimal(1), *values.values()]) for values in factors.values()), Decimal(1))
    for model, prices in models.items():
        for number, price in enumerate(prices, 1):
            rate = max(astuple(price.rates))
            if EXACT.multiply(rate, factor) > HIGHEST:
                got = f"model {model!r}, price {number}: {rate}, which modifiers multiply by up to {factor}"
                allowed = f"expected at most {HIGHEST} US dollars per million tokens"
                raise ConfigError(f"The price list {source} cannot be used: {got}; {allowed}")


def _amount(value: object) -> Decimal:
    if not isinstance(value, str) or not _AMOUNT.fullmatch(value):
        raise ValueError(f'expected an amount like "2.50", at most 6 fractional digits, got {value!r}')
    return Decimal(value)


def _tokens(value: object) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise ValueError(f"expected a number of tokens, got {value!r}")


def _name(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a name, got {value!r}")
