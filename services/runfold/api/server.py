"""uvicorn, run as one part of a process that has others: no logging set-up, no access log, signals of our own."""

import asyncio
import signal
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from runfold.core.errors import ConfigError

HEAD_SECONDS = 15.0
DRAIN_SECONDS = 10

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(
    app: FastAPI,
    host: str,
    port: int,
    *,
    on_bound: Callable[[int], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve ``app`` until ``stop`` is set, or, without one, until SIGINT or SIGTERM; then finish what is under way (10 s).

    ``port`` 0 takes a free one. ``on_bound`` is told the port once connections are accepted; what it raises ends this.
    Do not cancel it: set ``stop``. Raises `ConfigError` when the address cannot be had.
    """
    listener = _listen(host, port)
    server = _Server(_config(app), on_bound)
    with _until(stop, server):
        await server.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"the API cannot listen on {host} port {port}: {error.strerror}; free it or choose another") from error


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_bound: Callable[[int], None] | None) -> None:
        super().__init__(config)
        self._on_bound = on_bound

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets and self._on_bound is not None:
            try:
                self._on_bound(sockets[0].getsockname()[1])
            except BaseException:
                for listening in self.servers:
                    listening.close()  # nobody else does before the end of a start
                raise

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Finish; asked twice, at once."""
        self.force_exit, self.should_exit = self.should_exit, True


@contextmanager
def _until(stop: asyncio.Event | None, server: _Server) -> Iterator[None]:
    if stop is None:
        with _signals(server.stop):
            yield
        return
    waiting = asyncio.create_task(stop.wait())
    waiting.add_done_callback(lambda _: server.stop())
    try:
        yield
    finally:
        waiting.cancel()


@contextmanager
def _signals(act: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class _Protocol(H11Protocol):
    """Closes a connection whose next request line and headers take too long; uvicorn would wait for ever."""

    _patience: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _relax(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
