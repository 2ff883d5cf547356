"""What those who watch and those who write clients rely on: probes, metrics, the shape of errors, OpenAPI."""

import asyncio
import json
import math
import re
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from runfold.api import patience, probes
from runfold.api.exchanges import told
from runfold.api.rows import row_of
from runfold.core.errors import ReadUnavailable
from runfold.core.events import RunRequested
from runfold.core.run import Run
from runfold_projector.rows import RunRow, RunState
from tests.unit.api_client import World, problem, world

UNKNOWN = "3b241101-e2bb-4255-8caf-4136c566a962"


async def test_alive_says_nothing_of_what_stands_behind() -> None:
    async with world() as here:
        here.broker.stop()
        here.projection.up = False
        answer = await here.client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("down", ["log", "projection"])
async def test_ready_means_that_log_and_projection_answer(down: str) -> None:
    async with world() as here:
        assert (await here.client.get("/readyz")).status_code == 200
        here.projection.up = down != "projection"
        here.broker.up = down != "log"
        error = problem(await here.client.get("/readyz"), 503)
        assert error["code"] == "not_ready"
        assert error["checks"] == {"log": "ok", "projection": "ok", "freshness": "unavailable"} | {down: "unavailable"}


async def test_ready_means_that_the_tables_have_applied_what_the_log_holds() -> None:
    """Both answer all the time: that says nothing of the projector between them."""
    async with world(stalled_seconds=60) as here:
        moment = here.broker.clock()
        here.broker.clock = lambda: moment
        await here.submit()
        moment += 59_000
        assert (await here.client.get("/readyz")).status_code == 200
        moment += 2_000
        error = problem(await here.client.get("/readyz"), 503)
        assert error["checks"] == {"log": "ok", "projection": "ok", "freshness": "unavailable"}
        await here.projection.catch_up()
        assert (await here.client.get("/readyz")).status_code == 200


async def test_a_probe_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.05)
    async with world(ready={"stuck": asyncio.Event().wait}) as here:
        assert problem(await here.client.get("/readyz"), 503)["checks"] == {"stuck": "no answer"}


async def test_what_cannot_be_cancelled_keeps_no_probe_waiting_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a statement of a database that has fallen silent."""
    monkeypatch.setattr(probes, "PROBE_SECONDS", 0.05)
    stubborn = Stubborn()
    async with world(ready={"stuck": stubborn, "fine": at_once}) as here, asyncio.timeout(5):
        for _ in range(3):
            assert problem(await here.client.get("/readyz"), 503)["checks"] == {"stuck": "no answer", "fine": "ok"}
        assert stubborn.asked == 1
        stubborn.release.set()
        assert (await here.client.get("/readyz")).status_code == 200


async def test_a_fault_of_ours_is_no_answer_of_a_probe() -> None:
    for error, answer in ((ReadUnavailable("away"), "unavailable"), (TimeoutError(), "unavailable")):
        assert await probes.Question(partial(fail, error)).answer() == answer
    with pytest.raises(ZeroDivisionError):
        await probes.Question(partial(fail, ZeroDivisionError())).answer()


async def fail(error: Exception) -> None:
    raise error


async def test_a_read_that_cannot_even_be_cancelled_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "READ_SECONDS", 0.05)
    stubborn = Stubborn()
    async with world() as here, asyncio.timeout(5):
        monkeypatch.setattr(here.projection, "runs", lambda **_: stubborn())
        assert problem(await here.client.get("/api/runs"), 503)["code"] == "projection_unavailable"
        stubborn.release.set()


async def at_once() -> None:
    pass


class Stubborn:
    """Answers when it is released, and not a moment earlier, whoever cancels it. A test that fails ends nevertheless."""

    def __init__(self) -> None:
        self.asked, self.release = 0, asyncio.Event()
        asyncio.get_running_loop().call_later(10, self.release.set)

    async def __call__(self) -> None:
        self.asked += 1
        while not self.release.is_set():
            with suppress(asyncio.CancelledError):
                await self.release.wait()


async def test_a_port_that_hangs_is_503_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("READ_SECONDS", "SEND_SECONDS"):
        monkeypatch.setattr(patience, limit, 0.05)
    async with world() as here:
        here.broker.latency = 3600
        async with asyncio.timeout(5):
            problem(await here.client.post("/api/runs", json={"input": "go"}), 503)
            problem(await here.client.get(f"/api/runs/{UNKNOWN}"), 503)
            problem(await here.client.post(f"/api/runs/{UNKNOWN}/cancel"), 503)


async def test_metrics_count_by_route_and_never_by_run() -> None:
    async with world() as here:
        run_id = await here.submit()
        await here.client.get(f"/api/runs/{run_id}")
        await here.client.get("/somewhere/else")
        await here.client.request("BREW", "/coffee")
        text = (await here.client.get("/metrics")).text
        assert 'runfold_http_requests_total{method="GET",route="/api/runs/{id}",status="200"} 1.0' in text
        assert 'runfold_http_requests_total{method="GET",route="unmatched",status="404"} 1.0' in text
        assert 'method="OTHER"' in text
        assert run_id not in text
        assert "coffee" not in text


async def test_metrics_say_how_far_the_tables_are_behind_and_what_stands_still() -> None:
    """J06.3, R04.1: asked of tables and log, whoever else is down."""
    async with world(stalled_seconds=60) as here:
        moment = here.broker.clock()
        here.broker.clock = lambda: moment
        assert await _gauges(here) == (0, 0)
        await here.submit()
        moment += 100_000
        lag, stalled = await _gauges(here)
        assert (lag, math.isnan(stalled)) == (100, True), "what the tables have not heard of: it may stand still, it may not"
        await here.projection.catch_up()
        assert await _gauges(here) == (0, 1)
        await here.submit()
        moment += 50_000
        assert await _gauges(here) == (50, 1), "150 s without progress, of which the tables saw 100"
        moment += 1_000_000
        await here.submit()
        here.projection.offsets[:] = [0] * 4  # a rebuild
        lag, stalled = await _gauges(here)
        assert (lag, math.isnan(stalled)) == (1_150, True), "nothing can be said to stand still, nor to move"


@pytest.mark.parametrize("away", ["log", "projection"])
async def test_what_metrics_cannot_know_is_nan(away: str) -> None:
    async with world() as here:
        here.projection.up, here.broker.up = away != "projection", away != "log"
        assert all(map(math.isnan, await _gauges(here)))
        here.projection.up = here.broker.up = True
        assert await _gauges(here) == (0, 0)


async def test_a_scrape_does_not_wait_for_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runfold.api.freshness.SCRAPE_SECONDS", 0.05)
    async with world() as here:
        here.broker.latency = 3600
        async with asyncio.timeout(5):
            for _ in range(3):
                assert all(map(math.isnan, await _gauges(here)))
        assert here.projection.asked.count("reached") == 1, "questions do not pile up"


async def _gauges(here: World) -> tuple[float, float]:
    """Seconds of lag and stalled runs, as scraped."""
    assert (await here.client.get("/metrics")).status_code == 200
    lag, stalled = (here.registry.get_sample_value(f"runfold_{name}") for name in ("projection_lag_seconds", "runs_stalled"))
    assert lag is not None
    assert stalled is not None
    return lag, stalled


async def test_each_exchange_is_told_with_its_run() -> None:
    async with world() as here:
        run_id = await here.submit()
        await here.client.get(f"/api/runs/{run_id}/timeline")
        one, other = here.exchanges
        assert (one.method, one.route, one.status, one.run_id) == ("POST", "/api/runs", 202, None)
        assert (other.route, other.run_id) == ("/api/runs/{id}/timeline", run_id)
        assert other.seconds > 0


async def test_what_the_server_failed_is_logged_with_its_reason_and_its_run(caplog: pytest.LogCaptureFixture) -> None:
    async with world(observe=told) as here:
        await here.client.get(f"/api/runs/{UNKNOWN}")
        assert not caplog.records
        here.projection.up = False
        await here.client.get(f"/api/runs/{UNKNOWN}")
        reason, line = caplog.records
        assert reason.getMessage() == "projection_unavailable: 'stopped by the test'"
        assert re.fullmatch(r"GET /api/runs/\{id\} 503 \d+ms", line.getMessage())
        assert vars(line)["runfold.run.id"] == UNKNOWN
        caplog.clear()
        here.broker.stop()
        await here.client.post("/api/runs", json={"input": "go"})
        assert "stopped: call start()" in caplog.records[0].getMessage()


async def test_routing_errors_have_the_shape_of_all_errors() -> None:
    async with world() as here:
        assert problem(await here.client.get("/nowhere"), 404)["code"] == "not_found"
        wrong = await here.client.delete("/api/runs")
        assert problem(wrong, 405)["code"] == "method_not_allowed"
        assert "GET" in wrong.headers["allow"] or "POST" in wrong.headers["allow"]


async def test_what_nobody_expected_is_a_500_that_tells_nothing() -> None:
    async with world() as here:

        async def broken(run_id: str) -> Any:
            raise ZeroDivisionError("secret")

        here.projection.run = broken  # type: ignore[method-assign]
        answer = await here.client.get(f"/api/runs/{UNKNOWN}")
        assert problem(answer, 500)["code"] == "internal_error"
        assert "secret" not in answer.text
        assert here.exchanges[-1].status == 500


async def test_openapi_describes_requests_answers_and_errors() -> None:
    async with world() as here:
        api = (await here.client.get("/openapi.json")).json()
        submit = api["paths"]["/api/runs"]["post"]
        content = submit["requestBody"]["content"]["application/json"]
        assert content["schema"]["properties"]["tokenBudget"]["description"]
        assert (await here.client.post("/api/runs", json=content["example"])).status_code == 202
        assert {"202", "408", "413", "415", "422", "503"} <= set(submit["responses"])
        assert [parameter["name"] for parameter in submit["parameters"]] == ["Idempotency-Key"]
        assert {"200", "202", "404", "409", "422", "503"} <= set(api["paths"]["/api/runs/{id}/cancel"]["post"]["responses"])
        resume = api["paths"]["/api/runs/{id}/resume"]["post"]
        assert {"202", "404", "409", "415", "422", "503"} <= set(resume["responses"])
        fields = resume["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert fields.keys() == {"tokenBudget", "costCeilingUsd", "maxSteps", "detail"}
        assert "HTTPValidationError" not in json.dumps(api), "errors have one shape"
        for path in api["paths"].values():
            for operation in path.values():
                errors = [answer for status, answer in operation["responses"].items() if status >= "400"]
                assert errors
                assert all("ErrorBody" in json.dumps(answer["content"]) for answer in errors)


def test_the_fold_and_the_projector_make_the_same_row() -> None:
    """A run reads the same from the log and from SQL."""
    request = RunRequested(run_id=UNKNOWN, agent="a", input="go")
    run = Run(request=request, partition=0, first_offset=0, requested_at=1_700_000_000_123)
    parts = RunRow.of(run), RunState.of(run)
    columns = {name: getattr(row, name) for row in parts for name in row.__slots__}
    assert {name: columns[name] for name in row_of(run)} == row_of(run)
