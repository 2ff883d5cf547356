"""The server around the API: addresses, ends, and clients that connect and say nothing."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from runfold.api import server
from runfold.api.app import create_app
from runfold.core.errors import ConfigError
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryTail
from tests.unit.api_client import Projection

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass
class Running:
    """A server in this process, on a free port."""

    port: int
    task: asyncio.Task[None]
    broker: MemoryBroker


@asynccontextmanager
async def running(host: str = "127.0.0.1", stop: asyncio.Event | None = None) -> AsyncIterator[Running]:
    """Ended by ``stop``, or by a signal that the test sends."""
    broker = MemoryBroker()
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.serve(_app(broker), host, 0, on_bound=bound.set_result, stop=stop))
    try:
        yield Running(await asyncio.wait_for(bound, 10), task, broker)
    finally:
        if stop is not None:
            stop.set()
        await asyncio.wait_for(task, 20)


def _app(broker: MemoryBroker) -> FastAPI:
    return create_app(MemoryCommands(broker), Projection(broker), MemoryTail(broker))


async def test_it_tells_its_port_once_it_accepts_connections_and_ends_when_told() -> None:
    async with running(stop=asyncio.Event()) as here, httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{here.port}/api/runs", json={"input": "go"})
        assert answer.status_code == 202
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", here.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_after_the_requests_under_way(number: signal.Signals) -> None:
    async with running() as here, httpx.AsyncClient(base_url=f"http://127.0.0.1:{here.port}") as client:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            begun.set()
            await may_end.wait()

        here.broker.request = held  # type: ignore[method-assign]
        answer = asyncio.create_task(client.post("/api/runs", json={"input": "go"}))
        await asyncio.wait_for(begun.wait(), 10)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(asyncio.to_thread(_await_refusal, here.port), 10)
        may_end.set()
        assert (await asyncio.wait_for(answer, 10)).status_code == 202
    assert not asyncio.get_running_loop().remove_signal_handler(number), "the signal is given back"


def _await_refusal(port: int) -> None:
    """Connect until nobody accepts any more."""
    with suppress(OSError):
        while True:
            socket.create_connection(("127.0.0.1", port), 1).close()


async def test_nothing_listens_any_more_when_its_port_cannot_be_told() -> None:
    ports: list[int] = []

    def bound(port: int) -> None:
        ports.append(port)
        raise ConfigError("nobody can be told")

    with pytest.raises(ConfigError, match="nobody can be told"):
        await server.serve(_app(MemoryBroker()), "127.0.0.1", 0, on_bound=bound)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", *ports)


async def test_an_address_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            await server.serve(_app(MemoryBroker()), "127.0.0.1", port)


@pytest.mark.parametrize("before", [0, 1], ids=["new connection", "kept connection"])
@pytest.mark.parametrize("sent", [b"G", b"GET /healthz HTTP/1.1\r\nhost:"])
async def test_a_request_whose_head_never_ends_is_let_go(before: int, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    async with running(stop=asyncio.Event()) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        for _ in range(before):
            writer.write(HEALTH)
            assert b"200" in await reader.readuntil(b"}")
        writer.write(sent)
        async with asyncio.timeout(4):  # uvicorn closes what is merely idle after 5 s
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    async with running(stop=asyncio.Event()) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        async with asyncio.timeout(4):
            assert await reader.read() == b""
        writer.close()


async def test_ipv6_is_an_address_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    async with running("::1", asyncio.Event()) as here, httpx.AsyncClient() as client:
        assert (await client.get(f"http://[::1]:{here.port}/healthz")).status_code == 200
