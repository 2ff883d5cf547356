"""The command line as a client of the API: how long it waits, and what it says of what cannot be sent or understood."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from runfold.api import patience
from runfold.cli.app import app
from runfold.cli.client import ANSWER_SECONDS, TIMEOUT, ApiError
from runfold.core.errors import RunfoldError
from runfold.core.events import Status
from tests.unit.api_client import World, world

UNKNOWN = "00000000-0000-0000-0000-000000000001"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that each question of the API to log and tables may take, as they are asked."""
    seconds: list[float] = []
    within = patience._within

    async def told(limit: float, answer: Awaitable[Any], error: type[RunfoldError]) -> Any:
        seconds.append(limit)
        return await within(limit, answer, error)

    monkeypatch.setattr(patience, "_within", told)
    return seconds


async def _suspended(here: World) -> str:
    run_id = await here.submit()
    await here.projection.catch_up()
    here.projection.rows[run_id] |= {"status": Status.SUSPENDED, "reason": None}
    return run_id


async def keyed(here: World) -> Any:
    return await here.client.post("/api/runs", json={"input": "go"}, headers={"Idempotency-Key": "k"})


async def timeline(here: World) -> Any:
    return await here.client.get(f"/api/runs/{UNKNOWN}/timeline")


async def cancelled(here: World) -> Any:
    return await here.client.post(f"/api/runs/{await here.submit()}/cancel")


async def resumed(here: World) -> Any:
    return await here.client.post(f"/api/runs/{await _suspended(here)}/resume")


@pytest.mark.parametrize("ask", [keyed, timeline, cancelled, resumed])
async def test_whoever_waits_for_the_api_waits_as_long_as_all_that_it_asks_may_take(
    ask: Callable[[World], Awaitable[Any]], allowed: list[float]
) -> None:
    async with world() as here:
        assert (await ask(here)).status_code in (202, 404)
    assert len(allowed) > 1, "it asks more than once"
    assert sum(allowed) < ANSWER_SECONDS == TIMEOUT.read


async def test_the_longest_answer_of_the_api_is_the_one_that_the_documents_name(allowed: list[float]) -> None:
    async with world() as here:
        await keyed(here)
    assert (len(allowed), sum(allowed)) == (9, 8 * patience.READ_SECONDS + patience.SEND_SECONDS)


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "--api", f"http://{'a' * 70}:80"],
        ["watch", "\x01", "--api", NOBODY],
        ["submit", "go", "--idempotency-key", "ä", "--api", NOBODY],
        ["submit", "\udcff", "--api", NOBODY],
    ],
)
def test_what_cannot_be_sent_is_one_line(words: list[str]) -> None:
    """Bytes of the command line that are no text arrive as lone surrogates."""
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ApiError)
    assert "cannot be sent to" in str(error)
    assert "\n" not in str(error)


@contextmanager
def somebody_else() -> Iterator[str]:
    """The URL of a web server that is not ours."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def test_an_answer_of_somebody_else_is_one_line() -> None:
    with somebody_else() as url:
        error = CliRunner().invoke(app, ["runs", "--api", url]).exception
    assert isinstance(error, ApiError)
    assert str(error) == f"GET /api/runs: {url} answers, but not in JSON: expected the API of Runfold there"
