"""A Confluent-compatible schema registry, as far as the log needs one: ids for what we write, schemas for what we read."""

import base64
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from runfold.core.errors import ConfigError, LogUnavailable

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND = 404


class Registry(Protocol):
    """Blocking, and safe to call from any thread.

    Both calls raise `LogUnavailable` when the registry does not answer within its timeout or answers with a 5xx, and
    `ConfigError` when it refuses: credentials, an incompatible schema, a URL that is no registry's.
    """

    def id_of(self, subject: str, schema: str) -> int:
        """The id of ``schema`` (the JSON text) under ``subject``. A schema that the subject does not have is registered."""
        ...

    def schema(self, schema_id: int) -> str | None:
        """The JSON text of the Avro schema with this id, None where there is none."""
        ...


class ConfluentRegistry:
    """The REST API of Confluent's registry, also spoken by Karapace, Apicurio and Redpanda.

    ``url`` may carry credentials for basic authentication: ``https://key:secret@host``. Environment proxies are not used: the
    registry stands where the brokers stand.
    """

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"expected http://host:port or https://… as the URL of the schema registry, got {url!r}")
        self._url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._credentials = None if parts.username is None else _basic(parts.username, parts.password or "")
        self._timeout = timeout
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def id_of(self, subject: str, schema: str) -> int:
        path, body = f"/subjects/{quote(subject, safe='')}", {"schema": schema}
        found = self._ask(path, body) or self._ask(f"{path}/versions", body)
        return int(self._field(found, "id", f"an id for subject {subject}"))

    def schema(self, schema_id: int) -> str | None:
        found = self._ask(f"/schemas/ids/{schema_id}")
        return None if found is None else str(self._field(found, "schema", f"the schema with id {schema_id}"))

    def _ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        """The JSON of the answer, None for 404."""
        try:
            with self._open(self._request(path, body), timeout=self._timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            raise self._refused(path, error) from error
        except (OSError, HTTPException) as error:
            raise LogUnavailable(f"schema registry {self._url} does not answer: {error}; is it up and reachable?") from error
        except ValueError as error:
            raise ConfigError(f"expected JSON from the schema registry {self._url}{path}: {error}; check the URL") from error

    def _request(self, path: str, body: dict[str, str] | None) -> urllib.request.Request:
        data = None if body is None else json.dumps(body).encode()
        accept = f"{_CONTENT_TYPE}, application/json"
        request = urllib.request.Request(self._url + path, data, {"Content-Type": _CONTENT_TYPE, "Accept": accept})
        if self._credentials:
            request.add_unredirected_header("Authorization", self._credentials)  # not for whoever a redirect names
        return request

    def _refused(self, path: str, error: urllib.error.HTTPError) -> LogUnavailable | ConfigError:
        said = error.read(500).decode("utf-8", "replace")
        what = f"schema registry {self._url}{path} answered {error.code}: {said}"
        return LogUnavailable(what) if error.code >= 500 else ConfigError(what)

    def _field(self, answer: Any, name: str, what: str) -> Any:
        if not isinstance(answer, dict) or name not in answer:
            raise ConfigError(f"expected {what} from the schema registry {self._url}, got {answer!r}; check the URL")
        return answer[name]


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
