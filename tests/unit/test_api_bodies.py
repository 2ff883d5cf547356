"""U01: huge, slow and lying bodies, over real sockets to a real process."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BODY_SECONDS = 1.0
CHUNK = b"x" * 65536


@dataclass
class Api:
    port: int
    pid: int
    process: asyncio.subprocess.Process

    async def accepted(self) -> int:
        """Stop it: how many runs it produced."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        return int(await asyncio.wait_for(self.process.stdout.readline(), 20))

    @property
    def megabytes(self) -> float:
        """The most memory it ever had resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    command = [sys.executable, "-m", "tests.unit.api_socket", "1000000", str(BODY_SECONDS)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        yield Api(port, process.pid, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_body_within_the_limit_is_accepted_and_a_larger_one_is_not(api: Api) -> None:
    """U01.1 (as far as the API goes), U01.2"""
    assert await _post(api, _body(950_000)) == 202
    assert await _post(api, _body(1_000_000)) == 202
    assert await _post(api, _body(1_000_001)) == 413
    assert await _post(api, _body(1_050_000)) == 413
    assert await _post(api, _body(5_000_000)) == 413
    assert await _post(api, _body(950_000), chunked=True) == 202
    assert await _post(api, _body(1_050_000), chunked=True) == 413
    assert await api.accepted() == 3


async def test_a_chunked_body_of_200_megabytes_is_refused_in_little_memory(api: Api) -> None:
    """U01.2, U01.4"""
    assert await _post(api, _body(950_000)) == 202
    before = api.megabytes
    async with _connection(api) as (reader, writer):
        writer.write(_head("transfer-encoding: chunked"))
        answered = asyncio.create_task(_status(reader))
        await _pour(writer, 200_000_000)
        assert await asyncio.wait_for(answered, 30) == 413
    assert api.megabytes - before < 50
    assert await api.accepted() == 1


async def test_a_length_that_is_too_large_is_refused_before_the_body_comes(api: Api) -> None:
    async with _connection(api) as (reader, writer):
        writer.write(_head("content-length: 5000000", "expect: 100-continue"))
        assert await asyncio.wait_for(_status(reader), 10) == 413


async def test_a_client_that_reads_only_once_it_has_sent_everything_gets_its_answer(api: Api) -> None:
    """The connection is not reset under an answer that is still on its way."""
    for headers in ("transfer-encoding: chunked", "content-length: 20000000"):
        async with _connection(api) as (reader, writer):
            writer.write(_head(headers))
            await _pour(writer, 20_000_000)
            assert await asyncio.wait_for(_status(reader), 10) == 413


async def test_nested_json_of_any_depth_is_refused(api: Api) -> None:
    """U01.3 V2"""
    for depth in (10_000, 400_000):
        assert await _post(api, b"[" * depth + b"]" * depth) == 422
        assert await _post(api, b'{"a":' * (depth // 4)) == 422
    assert await api.accepted() == 0


async def test_a_content_length_that_lies_is_refused(api: Api) -> None:
    """U01.3 V3"""
    body = _body(100)
    async with _connection(api) as (reader, writer):  # promises more than it sends, and waits
        writer.write(_head(f"content-length: {len(body) + 1000}") + body)
        assert await asyncio.wait_for(_status(reader), 10) == 408
        assert await _closed(reader)
    async with _connection(api) as (reader, writer):  # promises more than it sends, and goes
        writer.write(_head(f"content-length: {len(body) + 1000}") + body)
        writer.write_eof()
        assert await asyncio.wait_for(_status(reader), 10) in (None, 400, 408)
    async with _connection(api) as (reader, writer):  # promises less: the rest is read as a second request
        writer.write(_head(f"content-length: {len(body) - 10}") + body)
        assert await asyncio.wait_for(_status(reader), 10) in (400, 422)
    for length in ("-1", "1e3", "99999999999999999999999", "5, 6"):
        async with _connection(api) as (reader, writer):
            writer.write(_head(f"content-length: {length}") + body)
            status = await asyncio.wait_for(_status(reader), 10)
            assert status is None or 400 <= status < 500
    assert await api.accepted() == 0


async def test_a_body_of_one_byte_at_a_time_is_given_up(api: Api) -> None:
    """U01.3 V4, with a limit of 1 s"""
    async with _connection(api) as (reader, writer):
        writer.write(_head("content-length: 5000"))
        dripping = asyncio.create_task(_drip(writer))
        try:
            assert await asyncio.wait_for(_status(reader), BODY_SECONDS + 5) == 408
            assert await asyncio.wait_for(_closed(reader), 5)
        finally:
            dripping.cancel()
    assert await api.accepted() == 0


async def test_a_body_nobody_asked_for_is_not_taken_in(api: Api) -> None:
    """A GET with 50 MB behind it is answered, and its connection ends."""
    before = api.megabytes
    async with _connection(api) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        answered = asyncio.create_task(_status(reader))
        await _pour(writer, 50_000_000)
        assert await asyncio.wait_for(answered, 30) == 200
        assert await asyncio.wait_for(_closed(reader), 10)
    assert api.megabytes - before < 50


async def test_the_server_is_unhurt_by_all_of_it(api: Api) -> None:
    async def rude(n: int) -> None:
        async with _connection(api) as (_, writer):
            writer.write(_head("transfer-encoding: chunked")[: 20 + n])
            writer.write(b"1\r\n" * n)

    await asyncio.gather(*(rude(n) for n in range(40)))
    assert await _post(api, _body(100)) == 202


# ---- a client that does as it likes


def _body(size: int) -> bytes:
    empty = len(json.dumps({"input": ""}))
    return json.dumps({"input": "x" * (size - empty)}).encode()


def _head(*headers: str) -> bytes:
    lines = ["POST /api/runs HTTP/1.1", "host: x", "content-type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


@asynccontextmanager
async def _connection(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _post(api: Api, body: bytes, chunked: bool = False) -> int | None:
    async with _connection(api) as (reader, writer):
        if chunked:
            writer.write(_head("transfer-encoding: chunked") + b"".join(_chunks(body)))
        else:
            writer.write(_head(f"content-length: {len(body)}") + body)
        return await asyncio.wait_for(_status(reader), 15)


def _chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 50_000):
        part = body[start : start + 50_000]
        yield f"{len(part):x}\r\n".encode() + part + b"\r\n"
    yield b"0\r\n\r\n"


async def _pour(writer: asyncio.StreamWriter, size: int) -> None:
    """Send chunks of rubbish until all is sent or the server has had enough."""
    frame = f"{len(CHUNK):x}\r\n".encode() + CHUNK + b"\r\n"
    with suppress(ConnectionError):
        for _ in range(size // len(CHUNK)):
            writer.write(frame)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.1)


async def _status(reader: asyncio.StreamReader) -> int | None:
    """The status of the answer; None when the connection ends without one."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return None
    return int(line.split()[1]) if line else None


async def _closed(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError):
        await reader.read()
    return True
