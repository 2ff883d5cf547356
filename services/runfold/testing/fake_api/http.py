"""As much HTTP/1.1 as a fake server needs, with the misbehaviour a test needs: resets, and
knowing that the peer has left."""

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


class Connection:
    """One client's connection: requests come one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._ahead = b""

    async def request(self) -> Request | None:
        """The next request, None when the client has left."""
        try:
            head = self._ahead + await self._reader.readuntil(b"\r\n\r\n")
            self._ahead = b""
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        method, target, _ = first.split(" ")
        url = urlsplit(target)
        return Request(method, url.path, dict(parse_qsl(url.query)), headers, body)

    async def left(self) -> None:
        """Returns when the client has closed its side, and not before."""
        while not self._ahead:
            try:
                self._ahead = await self._reader.read(1)
            except ConnectionError:
                return
            if not self._ahead:
                return
        await asyncio.Event().wait()  # the client is there: it has sent the next request already

    async def respond(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        """A whole response; ``body`` is text as it stands, or a value to send as JSON."""
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        kind = {"content-type": "application/json", "content-length": str(len(content))}
        await self._send(_head(status, {**kind, **(headers or {})}) + content)

    async def start_stream(self, headers: Mapping[str, str]) -> None:
        kind = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "transfer-encoding": "chunked"}
        await self._send(_head(200, {**kind, **headers}))

    async def send_event(self, event: Mapping[str, Any]) -> None:
        data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        await self._send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self._send(b"0\r\n\r\n")

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def reset(self) -> None:
        """Make the client see a connection reset."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
