"""Which failure a refused or broken model call is. Decided by what the API said, never by the class of an exception.

The type of the error speaks first, because overload can come inside a stream whose status was 200. Only a status that a
repetition cannot cure outranks it.
"""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason

MESSAGE_LIMIT = 500  # characters of an error message that are kept


class Fault(StrEnum):
    """What went wrong on our side of the wire, where the API gave the error no type."""

    NOT_CONNECTED = "not_connected"  # no answer began
    NOT_A_STREAM = "not_a_stream"  # 200 with another body: a page of a gateway
    MALFORMED_STREAM = "malformed_stream"  # no JSON, or events out of shape or order
    INCOMPLETE_STREAM = "incomplete_stream"  # it ended in order, and before the message did
    BROKEN_STREAM = "broken_stream"  # reset, or cut off in the middle of the transfer
    NO_FIRST_BYTE = "no_first_byte"
    NO_CONTENT = "no_content"  # for too long; pings are none
    UNKNOWN_CONTENT = "unknown_content"  # a delta or value that this build cannot store exactly


_BY_TYPE = {
    "invalid_request_error": Reason.MODEL_REQUEST,
    "request_too_large": Reason.MODEL_REQUEST,
    "authentication_error": Reason.MODEL_ACCESS,
    "billing_error": Reason.MODEL_ACCESS,
    "permission_error": Reason.MODEL_ACCESS,
    "not_found_error": Reason.MODEL_ACCESS,
    "rate_limit_error": Reason.RATE_LIMITED,
    "overloaded_error": Reason.OVERLOADED,
    "api_error": Reason.API_ERROR,
    "timeout_error": Reason.API_ERROR,
    "conflict_error": Reason.API_ERROR,
}
_FINAL_STATUS = {
    400: Reason.MODEL_REQUEST,
    413: Reason.MODEL_REQUEST,
    422: Reason.MODEL_REQUEST,
    401: Reason.MODEL_ACCESS,
    402: Reason.MODEL_ACCESS,
    403: Reason.MODEL_ACCESS,
    404: Reason.MODEL_ACCESS,
}
_PASSING_STATUS = {
    200: Reason.API_ERROR,  # an error of unknown type inside a stream
    408: Reason.API_ERROR,
    409: Reason.API_ERROR,
    429: Reason.RATE_LIMITED,
    529: Reason.OVERLOADED,
}
_PASSING = frozenset({Reason.RATE_LIMITED, Reason.OVERLOADED, Reason.API_ERROR, Reason.CONNECTION, Reason.MODEL_TIMEOUT})

_OTHER_CONVERSATION = "bound to a different conversation"  # of a thinking block, the only sign that a 400 gives of it
_KEY_MATERIAL = re.compile(r"sk-ant-[\w-]+|(?<=bearer )\S+|(?<=x-api-key: )\S+", re.IGNORECASE)


def failure(reason: Reason, message: str, fault: Fault | None = None, *, secret: str | None = None, **facts: Any) -> ModelFailure:
    """A `ModelFailure` whose message may be stored and shown; whether to try again follows from ``reason``."""
    facts = facts if fault is None else {"error_type": fault.value, **facts}
    return ModelFailure(reason, presentable(message, secret), retryable=reason in _PASSING, **facts)


def api_failure(status: int, body: object, text: str, headers: Mapping[str, str], *, secret: str | None = None) -> ModelFailure:
    """What an error of the API means: a status of 4xx or 5xx, or 200 for an error event inside a stream.

    ``body`` is the decoded JSON, whatever it is; ``text`` stands in for a message it does not hold.
    """
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    error_type, message = _text(error.get("type")), _text(error.get("message")) or text
    drift = status == 400 and _OTHER_CONVERSATION in message
    return failure(
        Reason.PREFIX_DRIFT if drift else _reason(status, error_type, _error_code(error)),
        message,
        secret=secret,
        http_status=status,
        error_type=error_type,
        retry_after=retry_after(headers) if status != 200 else None,
        request_id=headers.get("request-id"),
    )


def _reason(status: int, error_type: str | None, error_code: str | None) -> Reason:
    if error_code is not None and error_code.endswith("spend_limit_reached"):
        return Reason.MODEL_ACCESS  # comes as 429, and goes on until somebody pays
    if status in _FINAL_STATUS:
        return _FINAL_STATUS[status]
    if error_type in _BY_TYPE:
        return _BY_TYPE[error_type]
    if status >= 500 or status in _PASSING_STATUS:
        return _PASSING_STATUS.get(status, Reason.API_ERROR)
    return Reason.MODEL_REQUEST


def _error_code(error: dict[str, Any]) -> str | None:
    details = error.get("details")
    return _text(details.get("error_code")) if isinstance(details, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, None when it does not say or says nonsense.

    A date is measured against the server's own ``date`` header: its clock need not be ours.
    """
    if (milliseconds := _positive(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    return _positive(value) or _between(headers.get("date"), value)


def _positive(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if number > 0 and math.isfinite(number) else None


def _between(start: str | None, end: str | None) -> float | None:
    try:
        seconds = (parsedate_to_datetime(end or "") - parsedate_to_datetime(start or "")).total_seconds()
    except (ValueError, TypeError):  # no date; one with and one without a zone
        return None
    return seconds if seconds > 0 else None


def presentable(message: str, secret: str | None = None) -> str:
    """``message`` without key material, in characters every store takes, at most `MESSAGE_LIMIT` of them."""
    if secret:
        message = message.replace(secret, "[redacted]")
    message = _KEY_MATERIAL.sub("[redacted]", message)
    message = message.encode("utf-8", "replace").decode().replace("\x00", "")
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
