"""Prices as a worker asks for them: by the broker's day, and by what an agent asks of the API."""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from runfold.core.events import AgentDefinition, Usage
from runfold.core.money import EXACT
from runfold.core.reserving import Tariff
from runfold.model.pricing import FINEST, Prices, Rates

_REQUESTED = ("speed", "inference_geo")  # request fields that come back as modifiers of the price


class DatedPrices:
    """`runfold.worker.resources.Pricing` over a price list. Times are broker ms."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._tariff = lru_cache(maxsize=1000)(self._find_tariff)  # it is asked for at every decision

    def cost(self, model: str, usage: Usage, at: int, modifiers: Mapping[str, str]) -> Decimal | None:
        return self._prices.cost(model, usage, _day(at), modifiers)

    def tariff(self, definition: AgentDefinition, at: int) -> Tariff | None:
        return self._tariff(definition.model, definition.options_json, definition.cache_ttl, _day(at))

    def _find_tariff(self, model: str, options_json: str, cache_ttl: str, on: date) -> Tariff | None:
        rates = self._prices.highest(model, on, _asked(options_json))
        if rates is None:
            return None
        return Tariff(input=_of_one(_dearest(rates, cache_ttl)), output=_of_one(rates.output))


def _of_one(rate: Decimal) -> Decimal:
    """What one token costs, of a rate for a million; rounded up to what the log can hold of any number of them."""
    return rate.scaleb(-6, EXACT).quantize(FINEST, ROUND_CEILING, EXACT)


def _dearest(rates: Rates, cache_ttl: str) -> Decimal:
    """Of a token of the prompt, where the cache has forgotten all of it."""
    dearest = max(rates.input, rates.cache_read)
    if cache_ttl != "off":
        dearest = max(dearest, rates.cache_write_5m)
    return max(dearest, rates.cache_write_1h) if cache_ttl == "1h" else dearest


def _asked(options_json: str) -> dict[str, str]:
    options = json.loads(options_json)
    return {name: value for name in _REQUESTED if isinstance(value := options.get(name), str)}


def _day(at: int) -> date:
    return datetime.fromtimestamp(at / 1000, UTC).date()
