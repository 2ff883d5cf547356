"""A failed call is classified by what the API said."""

import pytest

from runfold.core.events import Reason
from runfold.model.failures import api_failure, presentable, retry_after


def body(error_type: str, **details: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": error_type, "message": "no", "details": details}}


@pytest.mark.parametrize(
    ("status", "error", "reason", "retryable"),
    [
        # the type outranks a status that says little
        (200, body("overloaded_error"), Reason.OVERLOADED, True),
        (200, body("rate_limit_error"), Reason.RATE_LIMITED, True),
        (200, body("api_error"), Reason.API_ERROR, True),
        (200, body("invalid_request_error"), Reason.MODEL_REQUEST, False),
        (200, body("permission_error"), Reason.MODEL_ACCESS, False),
        (200, body("never_heard_of"), Reason.API_ERROR, True),
        (500, body("overloaded_error"), Reason.OVERLOADED, True),
        (500, body("invalid_request_error"), Reason.MODEL_REQUEST, False),
        # a status that no repetition cures outranks the type
        (400, body("overloaded_error"), Reason.MODEL_REQUEST, False),
        (403, body("api_error"), Reason.MODEL_ACCESS, False),
        # without a known type the status decides
        (418, body("never_heard_of"), Reason.MODEL_REQUEST, False),
        (301, "", Reason.MODEL_REQUEST, False),
        (599, "<html>", Reason.API_ERROR, True),
        (529, None, Reason.OVERLOADED, True),
        (503, {"error": "down"}, Reason.API_ERROR, True),
        (503, {"error": {"type": 5, "message": {}}}, Reason.API_ERROR, True),
        # money
        (429, body("rate_limit_error", error_code="enforced_spend_limit_reached"), Reason.MODEL_ACCESS, False),
        (429, body("rate_limit_error", error_code="contract_spend_limit_reached"), Reason.MODEL_ACCESS, False),
        (429, body("rate_limit_error", error_code="ramp_limit_exceeded"), Reason.RATE_LIMITED, True),
        (402, body("billing_error"), Reason.MODEL_ACCESS, False),
    ],
)
def test_what_the_api_said_decides(status: int, error: object, reason: Reason, retryable: bool) -> None:
    failure = api_failure(status, error, "text", {})
    assert (failure.reason, failure.retryable, failure.http_status) == (reason, retryable, status)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "90", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "90000"}, 90000),
        (
            {"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"},
            30,  # by the server's clock, whatever ours says
        ),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 09:00:00 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_believed_when_it_makes_sense(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_message_is_cut_after_its_secrets_are_gone() -> None:
    """Cut first, half a key at the end would no longer look like one."""
    assert presentable("x" * 490 + " sk-ant-api03-secret") == "x" * 490 + " [redacte…"


def test_a_message_can_be_stored_everywhere() -> None:
    """PostgreSQL takes no NUL, UTF-8 no half pairs."""
    assert presentable("a\x00b\ud83dc") == "ab?c"
