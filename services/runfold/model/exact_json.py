"""JSON that loses nothing on its way from the API into the log and back: strict where Python is lenient."""

import json
import re
from typing import Any, NoReturn

_LONE = re.compile("[\ud800-\udfff]")
_MAYBE_LONE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str) -> Any:
    """Parse JSON that can be stored and sent again. ``ValueError`` for what Python would let pass or change in silence:
    duplicate keys, NaN and infinities, numbers no double can hold, nesting too deep for Python."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is beyond a double")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> str:
    """Compact JSON text that is valid UTF-8: halves of a surrogate pair become one character, those without a partner stay
    escapes. ``ValueError`` for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if text.isascii() or not _LONE.search(text):
        return text
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _LONE.sub(lambda half: f"\\u{ord(half[0]):04x}", paired)


def sendable(text: str) -> Any:
    """Parse stored JSON for sending. A surrogate without a partner, which UTF-8 cannot carry, becomes U+FFFD, always."""
    if _MAYBE_LONE.search(text):
        mended = json.dumps(json.loads(text), ensure_ascii=False)
        text = mended.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.loads(text)
