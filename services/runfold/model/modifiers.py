"""What the price of an answer depends on beside the five kinds of tokens, as its usage reports it.

Whatever in a usage object says that the bill may be another one is kept, known to this build or not: `Prices` has no price for
what it does not know, and a cost that is not known is shown as such.
"""

from typing import Any

from runfold.core.printable import printable

_LONGEST = 100  # characters of a name or a value that are kept
_MOST = 20

_COUNTED = frozenset({  # in `runfold.core.events.Usage`, or part of what is
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens_details",
})
_LIFETIMES = frozenset({"ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"})


def modifiers_of(reported: dict[str, Any]) -> dict[str, str] | None:
    """The API's usage object without its counters: ``service_tier``, ``speed``, ``inference_geo``, searches made, and whatever
    else is neither null nor zero. None: there is nothing of the kind."""
    found = {
        name: value
        for name, value in reported.items()
        if name not in _COUNTED and name != "cache_creation" and not _is_nothing(value)
    }
    split = reported.get("cache_creation")
    if isinstance(split, dict):
        found |= {name: value for name, value in split.items() if name not in _LIFETIMES and not _is_nothing(value)}
    kept = sorted(found.items())[:_MOST]
    return {_short(name): _short(value) for name, value in kept} or None


def _is_nothing(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_nothing, value.values()))
    return not value


def _short(value: object) -> str:
    """As text that any log and table can hold."""
    return printable(str(value)[:_LONGEST])
