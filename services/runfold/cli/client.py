"""The HTTP API as the command line uses it."""

import weakref
from typing import Any

import httpx

from runfold.core.errors import RunfoldError

# The API asks log and tables one after the other, each for as long as `runfold.api.patience` allows: for a keyed submission,
# eight reads and a command, 52 s. Tests add them up; to do it here would cost each command the import of the API.
ANSWER_SECONDS = 60.0
TIMEOUT = httpx.Timeout(15.0, read=ANSWER_SECONDS)


class ApiError(RunfoldError):
    """The HTTP API refused or was not there."""


class Client:
    """Raises `ApiError` for every answer that is no success. Its connections end with it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            self._http = httpx.Client(base_url=self._url, timeout=TIMEOUT)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ApiError(f"expected http://host:port or https://… as the API's address, got {url!r}: {error}") from None
        weakref.finalize(self, self._http.close)

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Any:
        return self._ask("POST", path, json=body, headers=headers)

    def _ask(self, method: str, path: str, **words: Any) -> Any:
        try:
            answer = self._http.request(method, path, **words)
        except httpx.HTTPError as error:
            advice = "start it (`runfold dev`) or name it with --api"
            raise ApiError(f"the API at {self._url} does not answer ({error}): {advice}") from error
        except (httpx.InvalidURL, UnicodeError) as error:  # of the address, a run's id, a key, or a text that is none
            raise ApiError(f"{method} {path!r} cannot be sent to {self._url}: {error}") from None
        if not answer.is_success:
            raise ApiError(f"{method} {path}: {answer.status_code}: {_said(answer)}")
        try:
            return answer.json()
        except ValueError:
            raise ApiError(f"{method} {path}: {self._url} answers, but not in JSON: expected the API of Runfold there") from None


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])  # it names the field
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.text[:500]
