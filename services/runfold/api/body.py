"""Bodies that are huge, slow or never end: how much of a request is taken in, and for how long.

`BodyGuard` is ASGI middleware. Reading a body through it raises `Problem`: 413 once the body is known to be too large, from its
Content-Length or while it streams; 408 when it is not complete in time. Nothing beyond the limit is kept in memory.

A response to a request whose body was not read to the end closes the connection. Closing at once would reset it and could destroy
the answer before the client has read it, so what still arrives is read and thrown away for a short while first.
"""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.api.problems import Problem

LINGER_SECONDS = 5.0


class BodyGuard:
    """Bounds every request body of ``app``: ``max_bytes``, complete within ``seconds`` of the first read."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app, self._max_bytes, self._seconds = app, max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(Headers(scope=scope), receive, send, self._max_bytes, self._seconds)
        await self._app(scope, body.receive, body.send)


class _Body:
    """One request's body on its way in, and the response that may overtake it."""

    def __init__(self, headers: Headers, receive: Receive, send: Send, max_bytes: int, seconds: float) -> None:
        length = headers.get("content-length", "0")
        self._declared = int(length) if length.isdecimal() else 0
        self._complete = self._declared == 0 and "transfer-encoding" not in headers
        self._receive, self._send = receive, send
        self._max_bytes, self._seconds = max_bytes, seconds
        self._received = 0
        self._deadline: float | None = None
        self._slow = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        self._check_size(self._declared)
        message = await self._next_in_time()
        self._check_size(self._received)
        return message

    async def send(self, message: Message) -> None:
        if not self._complete and message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        if not self._complete and not self._slow and _is_last(message):
            await self._send({**message, "more_body": True})
            await self._discard_rest()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            message = f"the body may have {self._max_bytes} bytes, this one has more"
            raise Problem(413, "body_too_large", message, limitBytes=self._max_bytes)

    async def _next_in_time(self) -> Message:
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._next()
        except TimeoutError:
            self._slow = True
            raise Problem(408, "body_timeout", f"the body was not complete after {self._seconds:g} s") from None

    async def _next(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    async def _discard_rest(self) -> None:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while not self._complete:
                    await self._next()
        except TimeoutError:
            pass


def _is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body", False)
