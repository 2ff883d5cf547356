"""Submitting, reading, cancelling and resuming runs over HTTP."""

import re
from decimal import Decimal
from typing import Any

import pytest

from runfold.core.events import RunCancelRequested, RunRequested, RunResumeRequested, Status
from tests.unit.api_client import World, at, problem, world

UNKNOWN = "3b241101-e2bb-4255-8caf-4136c566a962"
READS = [("GET", ""), ("GET", "/timeline"), ("POST", "/cancel"), ("POST", "/resume")]


async def test_a_submission_is_answered_with_the_id_and_lies_in_the_log_as_it_was_meant() -> None:
    async with world() as here:
        body = {
            "input": "Which acme tickets are overdue?",
            "agent": "support",
            "model": "claude-x",
            "maxTokens": 1000,
            "tokenBudget": 50000,
            "costCeilingUsd": 0.123456789012,
            "timeoutSeconds": 300,
            "maxSteps": 7,
            "progressTimeoutSeconds": 60,
            "metadata": {"ticket": "17"},
            "tenant": "acme",
        }
        answer = await here.client.post("/api/runs", json=body)
        assert answer.status_code == 202
        run_id = answer.json()["id"]
        assert answer.json() == {"id": run_id, "status": "QUEUED"}
        assert answer.headers["location"] == f"/api/runs/{run_id}"
        [command] = here.sent
        assert isinstance(command, RunRequested)
        assert (command.run_id, command.agent, command.model, command.tenant) == (run_id, "support", "claude-x", "acme")
        assert (command.max_tokens, command.metadata, command.request_digest) == (1000, {"ticket": "17"}, None)
        limits = command.limits
        assert (limits.token_budget, str(limits.cost_ceiling)) == (50000, "0.123456789012")
        assert (limits.timeout_ms, limits.max_steps, limits.progress_timeout_ms) == (300_000, 7, 60_000)


async def test_null_and_absent_are_the_documented_defaults() -> None:
    async with world() as here:
        await here.submit(agent=None, tokenBudget=None, timeoutSeconds=None, metadata=None)
        await here.submit()
        assert len(here.sent) == 2
        for command in here.sent:
            assert isinstance(command, RunRequested)
            assert command.agent == "default"
            assert command.limits.token_budget is None
            assert command.limits.timeout_ms is None


async def test_a_submission_needs_no_projection() -> None:
    async with world() as here:
        here.projection.up = False
        await here.submit()


async def test_a_run_that_is_not_projected_yet_is_never_unknown() -> None:
    """J06.1, in memory: the run, its timeline and a cancel, right after the POST."""
    async with world() as here:
        run_id = await here.submit(tenant="acme", timeoutSeconds=5)
        run = await here.client.get(f"/api/runs/{run_id}")
        assert run.status_code == 200
        assert (run.json()["status"], run.json()["tenant"], run.json()["timeoutSeconds"]) == ("QUEUED", "acme", 5)
        timeline = await here.client.get(f"/api/runs/{run_id}/timeline")
        assert (timeline.status_code, timeline.json()) == (200, [])
        cancel = await here.client.post(f"/api/runs/{run_id}/cancel")
        assert (cancel.status_code, cancel.json()) == (202, {"id": run_id, "status": "QUEUED"})


async def test_a_run_reads_the_same_before_and_after_it_is_projected() -> None:
    async with world() as here:
        run_id = await here.submit(costCeilingUsd=1.5, metadata={"a": "b"})
        before = (await here.client.get(f"/api/runs/{run_id}")).json()
        await here.projection.catch_up()
        here.broker.stop()  # from now on only the projection can answer
        assert (await here.client.get(f"/api/runs/{run_id}")).json() == before


async def test_the_projection_catching_up_between_two_looks_loses_no_run() -> None:
    """The tail is read from where the projector was *after* the first miss; a run it projected meanwhile is below that."""
    async with world() as here:
        run_id = await here.submit()
        applied = here.projection.applied

        async def moving(partition: int) -> int:
            await here.projection.catch_up()
            return await applied(partition)

        here.projection.applied = moving  # type: ignore[method-assign]
        assert (await here.client.get(f"/api/runs/{run_id}")).status_code == 200


@pytest.mark.parametrize(("method", "path"), READS)
async def test_an_unknown_run_is_404_and_nothing_is_produced(method: str, path: str) -> None:
    """R06.1, J06.2"""
    async with world() as here:
        await here.submit()
        answer = await here.client.request(method, f"/api/runs/{UNKNOWN}{path}")
        assert problem(answer, 404)["code"] == "run_not_found"
        assert len(here.sent) == 1


@pytest.mark.parametrize("up", ["log", "projection"])
@pytest.mark.parametrize(("method", "path"), READS)
async def test_unknown_is_never_said_while_it_cannot_be_known(up: str, method: str, path: str) -> None:
    async with world() as here:
        here.projection.up = up == "projection"
        here.broker.up = up == "log"
        answer = await here.client.request(method, f"/api/runs/{UNKNOWN}{path}")
        problem(answer, 503)
        assert int(answer.headers["retry-after"]) > 0


async def test_a_log_that_does_not_answer_is_503_and_says_under_which_id_to_look() -> None:
    async with world() as here:
        here.broker.stop()
        answer = await here.client.post("/api/runs", json={"input": "go"})
        error = problem(answer, 503)
        assert error["code"] == "log_unavailable"
        assert re.fullmatch("[0-9a-f-]{36}", error["runId"])
        assert answer.headers["retry-after"]


MALFORMED = [
    "not-a-uuid",
    "x" * 300,
    "..%2Fx",
    "%00",
    UNKNOWN.upper(),
    "{" + UNKNOWN + "}",
    UNKNOWN.replace("-", ""),
    f"urn:uuid:{UNKNOWN}",
    UNKNOWN + "%0A",
    UNKNOWN.translate(str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")),
]


@pytest.mark.parametrize("run_id", MALFORMED, ids=lambda text: ascii(text)[:30])
@pytest.mark.parametrize(("method", "path"), READS)
async def test_other_spellings_of_an_id_are_refused(run_id: str, method: str, path: str) -> None:
    """U05.1, U05.2: one spelling exists; nothing is produced, nothing is asked of SQL, no label takes the text."""
    async with world() as here:
        answer = await here.client.request(method, f"/api/runs/{run_id}{path}")
        if run_id == "..%2Fx":
            problem(answer, 404)  # it is another path, and no route
        else:
            problem(answer, 422, "id")
        assert not here.sent
        assert not here.projection.asked
        assert all(exchange.run_id is None for exchange in here.exchanges)
        metrics = (await here.client.get("/metrics")).text
        assert "x" * 300 not in metrics
        assert UNKNOWN.upper() not in metrics


async def test_the_nil_uuid_is_an_unknown_run() -> None:
    async with world() as here:
        problem(await here.client.get("/api/runs/00000000-0000-0000-0000-000000000000"), 404)


async def test_an_empty_id_is_no_run() -> None:
    async with world() as here:
        for method, path in READS:
            problem(await here.client.request(method, f"/api/runs/{path}"), 404)


# ---- cancelling


async def test_cancel_sends_one_command_each_time_it_is_accepted() -> None:
    """B02.1, as far as the API goes: every accepted POST is a command; the owner makes one end of them."""
    async with world() as here:
        run_id = await here.submit()
        await here.projection.catch_up()
        for _ in range(3):
            assert (await here.client.post(f"/api/runs/{run_id}/cancel")).status_code == 202
        cancels = [command for command in here.sent if isinstance(command, RunCancelRequested)]
        assert len({command.command_id for command in cancels}) == 3


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT])
async def test_cancelling_an_ended_run_is_409_with_its_status(status: Status) -> None:
    """B02.2"""
    async with world() as here:
        run_id = await _standing(here, status)
        error = problem(await here.client.post(f"/api/runs/{run_id}/cancel"), 409)
        assert (error["code"], error["status"], error["id"]) == ("run_finished", status, run_id)
        assert len(here.sent) == 1


async def test_cancelling_a_cancelled_run_is_200() -> None:
    """B02.3"""
    async with world() as here:
        run_id = await _standing(here, Status.CANCELLED)
        answer = await here.client.post(f"/api/runs/{run_id}/cancel")
        assert (answer.status_code, answer.json()) == (200, {"id": run_id, "status": "CANCELLED"})
        assert len(here.sent) == 1


async def test_a_cancel_may_say_why() -> None:
    async with world() as here:
        run_id = await here.submit()
        assert (await here.client.post(f"/api/runs/{run_id}/cancel", json={"detail": "twice the same"})).status_code == 202
        *_, command = here.sent
        assert isinstance(command, RunCancelRequested)
        assert command.detail == "twice the same"


async def _standing(here: World, status: Status) -> str:
    run_id = await here.submit()
    await here.projection.catch_up()
    here.projection.rows[run_id]["status"] = status
    return run_id


# ---- resuming


async def test_a_resumption_lies_in_the_log_as_it_was_meant() -> None:
    async with world() as here:
        run_id = await _standing(here, Status.SUSPENDED)
        body = {"tokenBudget": 5000, "costCeilingUsd": 0.25, "maxSteps": 9, "detail": "go on"}
        answer = await here.client.post(f"/api/runs/{run_id}/resume", json=body)
        assert (answer.status_code, answer.json()) == (202, {"id": run_id, "status": "SUSPENDED"})
        *_, command = here.sent
        assert isinstance(command, RunResumeRequested)
        assert (command.run_id, command.requested_by, command.detail) == (run_id, "api", "go on")
        assert (command.token_budget, command.cost_ceiling, command.max_steps) == (5000, Decimal("0.25"), 9)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"tokenBudget":null,"detail":null}'])
async def test_a_resumption_without_wishes_leaves_the_limits_as_they_are(body: bytes) -> None:
    async with world() as here:
        run_id = await _standing(here, Status.SUSPENDED)
        headers = {"Content-Type": "application/json"} if body else {}
        assert (await here.client.post(f"/api/runs/{run_id}/resume", content=body, headers=headers)).status_code == 202
        *_, command = here.sent
        assert isinstance(command, RunResumeRequested)
        assert (command.token_budget, command.cost_ceiling, command.max_steps, command.detail) == (None, None, None, "")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SUSPENDED])
async def test_resuming_a_run_that_is_not_suspended_is_409_with_its_status(status: Status) -> None:
    async with world() as here:
        run_id = await _standing(here, status)
        error = problem(await here.client.post(f"/api/runs/{run_id}/resume"), 409)
        assert (error["code"], error["status"], error["id"]) == ("run_not_suspended", status, run_id)
        assert len(here.sent) == 1


async def test_a_run_that_is_not_projected_yet_is_not_suspended_either() -> None:
    async with world() as here:
        run_id = await here.submit()
        assert problem(await here.client.post(f"/api/runs/{run_id}/resume"), 409)["status"] == "QUEUED"


@pytest.mark.parametrize("action", ["cancel", "resume"])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("[]", None),
        ("{", None),
        ('{"reason":"x"}', "reason"),
        ('{"detail":1}', "detail"),
        ('{"detail":"\\u0000"}', "detail"),
        (f'{{"detail":"{"x" * 501}"}}', "detail"),
        ('{"detail":"a","detail":"b"}', "detail"),
    ],
)
async def test_nonsense_beside_a_command_is_refused_and_nothing_is_produced(action: str, body: str, field: str | None) -> None:
    async with world() as here:
        run_id = await _standing(here, Status.SUSPENDED)
        path, headers = f"/api/runs/{run_id}/{action}", {"Content-Type": "application/json"}
        problem(await here.client.post(path, content=body, headers=headers), 422, field)
        problem(await here.client.post(path, content=body), 415)
        assert len(here.sent) == 1


@pytest.mark.parametrize("field", ["tokenBudget", "costCeilingUsd", "maxSteps"])
@pytest.mark.parametrize("text", ["0", "-1", "true", '"100"', "NaN", "1e999", "[]"])
async def test_a_nonsense_limit_is_refused_by_its_name(field: str, text: str) -> None:
    """U03, of a resumption."""
    async with world() as here:
        run_id = await _standing(here, Status.SUSPENDED)
        headers = {"Content-Type": "application/json"}
        answer = await here.client.post(f"/api/runs/{run_id}/resume", content=f'{{"{field}":{text}}}', headers=headers)
        problem(answer, 422, field)
        assert len(here.sent) == 1


# ---- timeline


STEP: dict[str, Any] = {
    "seq": 1,
    "kind": "MODEL",
    "status": "DONE",
    "attempt": 1,
    "model": "claude-x",
    "stop_reason": "tool_use",
    "tool": None,
    "tool_use_id": None,
    "model_seq": None,
    "side_effect": None,
    "input_tokens": 812,
    "output_tokens": 64,
    "cache_write_5m_tokens": 1,
    "cache_write_1h_tokens": 2,
    "cache_read_tokens": 3,
    "latency_ms": 1830,
    "cost_usd": None,
    "modifiers": None,
    "wasted_tokens": 0,
    "wasted_cost_usd": Decimal(0),
    "worker": "worker-A",
    "started_at": at(0),
    "finished_at": at(2),
    "error_reason": None,
    "error_message": None,
    "idempotency_key": "a column the API does not show",
}


async def test_the_timeline_is_an_array_of_steps_in_camel_case() -> None:
    async with world() as here:
        run_id = await here.submit()
        here.projection.timelines[run_id] = [STEP]
        [step] = (await here.client.get(f"/api/runs/{run_id}/timeline")).json()
        assert [step[name] for name in ("seq", "kind", "status", "latencyMs")] == [1, "MODEL", "DONE", 1830]
        assert step["stopReason"] == "tool_use"
        assert (step["cacheWrite5mTokens"], step["cacheWrite1hTokens"], step["cacheReadTokens"]) == (1, 2, 3)
        assert (step["worker"], step["startedAt"]) == ("worker-A", "2023-11-14T22:13:20Z")
        assert step["costUsd"] is None
        assert not any("_" in name for name in step)
        assert "idempotencyKey" not in step
