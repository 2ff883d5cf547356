"""The Messages API through the anthropic SDK, of which only the HTTP part is used: one request, raw events, no retry, no repair.

Why not its stream helper: it takes a clean end without ``message_stop`` for success, completes cut-off tool input by guessing,
drops deltas it does not know and hides the pings.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import anthropic
import httpx2

from runfold.core.errors import ConfigError, ModelFailure
from runfold.core.events import Reason
from runfold.model.failures import Fault, api_failure, failure
from runfold.model.request import arguments
from runfold.model.streaming import Event, Opened, StreamedModel
from runfold.ports import ModelRequest

# Reading has no limit here: `TimeLimited` knows content from pings. Waiting for a free connection has none either, because
# there is no limit to connections: the worker limits its calls.
_TIMEOUT = httpx2.Timeout(None, connect=10, write=60)
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)

_TRUST = httpx2.create_ssl_context()  # 20 ms: made at import, so that workers that are forked have it already

_NEVER_SENT = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL)


class AnthropicModel(StreamedModel):
    """One client, for the whole life of a process. Waits for ever on a silent server: wrap it in `TimeLimited`.

    Without ``api_key`` and ``base_url`` the SDK's own environment counts (ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL, profiles …).
    Raises `ConfigError` when there are no credentials at all, so that no run has to find out.
    """

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None) -> None:
        try:
            self._client = anthropic.AsyncAnthropic(
                api_key=api_key,
                base_url=base_url,
                max_retries=0,
                open_telemetry=False,
                http_client=anthropic.DefaultAsyncHttpxClient(timeout=_TIMEOUT, limits=_LIMITS, verify=_TRUST),
                timeout=_TIMEOUT,
            )
        except (anthropic.AnthropicError, httpx2.InvalidURL, ValueError) as error:
            raise ConfigError(f"The Anthropic client refuses its settings: {error}") from error
        self._secret = self._client.api_key or self._client.auth_token
        if self._secret is None and self._client.credentials is None:
            raise ConfigError("No credentials for the Anthropic API: set ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or a profile.")

    async def close(self) -> None:
        await self._client.close()

    async def events(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        async with self._open(request) as response, aclosing(self._read(response)) as events:
            yield Opened(response.headers.get("request-id"))
            async for event in events:
                if event["type"] == "error":
                    raise api_failure(200, event, "error without a message", response.headers, secret=self._secret)
                yield event

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[httpx2.Response]:
        """Send the request; the connection is let go at the end, whatever the reason for it."""
        try:
            stream = await self._client.messages.create(**arguments(request))
        except Exception as error:
            raise self._not_opened(error) from error
        try:
            yield stream.response
        finally:
            await stream.close()

    def _not_opened(self, error: Exception) -> ModelFailure:
        match error:
            case anthropic.APIStatusError():
                return api_failure(error.status_code, error.body, error.message, error.response.headers, secret=self._secret)
            case anthropic.APIConnectionError(__cause__=cause) if not isinstance(cause, _NEVER_SENT):
                return self._failure(Reason.CONNECTION, f"no answer: {cause!r}", Fault.NOT_CONNECTED)
            case httpx2.HTTPError():  # while an error's body was read
                return self._failure(Reason.CONNECTION, f"connection lost: {error!r}", Fault.BROKEN_STREAM)
            case anthropic.CredentialsError():
                return self._failure(Reason.MODEL_ACCESS, f"credentials cannot be loaded: {error}")
            case _:
                return self._failure(Reason.CONFIG, f"the request cannot be made: {error.__cause__ or error!r}")

    async def _read(self, response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
        """The stream's events up to and with ``message_stop``; fewer when it ends early."""
        seen = False
        stream = anthropic.AsyncStream.raw_events(response)
        try:
            async for sse in stream:
                if not sse.data:
                    continue
                seen = True
                event = json.loads(sse.data)
                if event["type"] == "message_stop":
                    await _let_end(stream)
                yield event
        except httpx2.HTTPError as error:
            raise self._failure(Reason.CONNECTION, f"the stream broke off: {error!r}", Fault.BROKEN_STREAM) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._failure(
                Reason.API_ERROR, f"the stream holds what is no event: {error!r}", Fault.MALFORMED_STREAM
            ) from error
        kind = response.headers.get("content-type", "")
        if not seen and "text/event-stream" not in kind:
            said = f"expected text/event-stream, got {kind or 'no content type'}"
            raise self._failure(Reason.API_ERROR, said, Fault.NOT_A_STREAM)

    def _failure(self, reason: Reason, message: str, fault: Fault | None = None) -> ModelFailure:
        return failure(reason, message, fault, secret=self._secret)


async def _let_end(stream: AsyncIterator[Any]) -> None:
    """Read the end of a body that is all there: only then can the connection serve another call."""
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(0.1):
            async for _ in stream:
                pass
