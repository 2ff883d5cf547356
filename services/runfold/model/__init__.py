"""Calling a model: one attempt, its clocks, its retries, its price.

``Retrying(TimeLimited(AnthropicModel()))`` is the whole of it for a program without a log; the worker leaves `Retrying` out,
because its retries are events, and asks `RetryPolicy` for the delays. `AnthropicModel` is not imported here: it costs seconds.
"""

from runfold.model.breaker import BreakerPolicy, Breakers
from runfold.model.dated_prices import DatedPrices
from runfold.model.pricing import Prices
from runfold.model.retrying import Backoff, Retrying, RetryPolicy
from runfold.model.scripted import ScriptedModel
from runfold.model.timing import TimeLimited

__all__ = [
    "Backoff",
    "BreakerPolicy",
    "Breakers",
    "DatedPrices",
    "Prices",
    "RetryPolicy",
    "Retrying",
    "ScriptedModel",
    "TimeLimited",
]
