"""What a client is told when a request cannot be served: one JSON shape for every error.

``{"error": {"code": "...", "message": "...", "field": "...", ...}}``. Codes are listed in docs/http-api.md. A message says what
was expected and what came, shortened: nothing a client sent is ever echoed at length.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from runfold.core.errors import LogError, ReadUnavailable, TooLarge

SHOWN = 60  # characters of what a client sent that a message repeats
RETRY_SECONDS = "1"

log = logging.getLogger("runfold.api")

_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


class Problem(Exception):
    """A request that cannot be served. ``facts`` are further members of the error object."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        /,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.headers, self.facts = headers, facts


class ProblemResponse(JSONResponse):
    """A `Problem` on the wire: plain ASCII, so that any text a client can send can stand in it."""

    def __init__(self, problem: Problem) -> None:
        content: dict[str, Any] = {"code": problem.code, "message": problem.message}
        if problem.field is not None:
            content["field"] = problem.field
        super().__init__({"error": content | problem.facts}, problem.status, problem.headers)

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def unavailable(code: str, message: str, **facts: Any) -> Problem:
    """Something behind the API does not answer: the client may try again."""
    return Problem(503, code, message, headers={"Retry-After": RETRY_SECONDS}, **facts)


def invalid(error: Mapping[str, Any], where: int = 0) -> Problem:
    """One of pydantic's error details as a 422 that names its field, which begins at ``loc[where]``."""
    field = ".".join(str(part) for part in error["loc"][where:])[:SHOWN]
    got = "" if error["type"] in ("missing", "extra_forbidden") else f", got {shown(error['input'])}"
    return Problem(422, "invalid_request", f"{field}: {error['msg']}{got}", field=field)


def shown(value: object) -> str:
    """``value``, parsed from JSON, as a message may repeat it."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
        case bool() | None | str():
            return json.dumps(value[:SHOWN] if isinstance(value, str) else value)
        case _:
            return str(value)[:SHOWN]


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a `ProblemResponse`."""
    for error in _TRANSLATIONS:
        app.add_exception_handler(error, _respond)
    app.add_exception_handler(Exception, _respond)


async def _respond(_: Request, error: Exception) -> ProblemResponse:
    problem = _problem(error)
    if problem.status == 503:  # the client is told that; the operator, why
        log.warning("%s: %.500r", problem.code, str(error.__cause__ or error))
    return ProblemResponse(problem)


def _problem(error: Exception) -> Problem:
    for kind, translate in _TRANSLATIONS.items():
        if isinstance(error, kind):
            problem: Problem = translate(error)
            return problem
    return Problem(500, "internal_error", "the request failed for a reason of the server's own; its log says more")


def _of_routing(error: HTTPException) -> Problem:
    code = _CODES.get(error.status_code, "bad_request")
    return Problem(error.status_code, code, str(error.detail).lower(), headers=error.headers)


def _of_parameters(error: RequestValidationError) -> Problem:
    return invalid(error.errors()[0], where=1)  # after "query" or "path"


_TRANSLATIONS: dict[type[Exception], Any] = {
    Problem: lambda problem: problem,
    RequestValidationError: _of_parameters,
    HTTPException: _of_routing,
    TooLarge: lambda error: Problem(413, "body_too_large", "the run does not fit into one record of the log"),
    LogError: lambda error: unavailable("log_unavailable", "the log does not answer: try again"),
    ReadUnavailable: lambda error: unavailable("projection_unavailable", "the projection cannot be read now: try again"),
    ClientDisconnect: lambda error: Problem(400, "incomplete_body", "the connection ended before the body did"),
}
