"""Idempotency-Key: a request sent again starts nothing again."""

import asyncio
from typing import Any

import httpx
import pytest

from runfold.api.idempotency import run_id_of
from runfold.core.errors import LogUnavailable
from runfold.core.events import Command, RunRequested
from tests.unit.api_client import World, problem, world

KEY = {"Idempotency-Key": "order-17"}


async def test_the_same_request_again_is_the_same_run_and_produces_nothing() -> None:
    async with world() as here:
        first = await _post(here, KEY)
        assert (first.status_code, first.headers.get("idempotency-replayed")) == (202, None)
        again = await _post(here, KEY)
        assert (again.status_code, again.json(), again.headers["idempotency-replayed"]) == (202, first.json(), "true")
        await here.projection.catch_up()
        here.projection.rows[first.json()["id"]]["status"] = "RUNNING"
        projected = await _post(here, KEY)
        assert projected.json() == {"id": first.json()["id"], "status": "RUNNING"}
        assert len(here.sent) == 1


async def test_another_body_under_the_same_key_is_refused() -> None:
    async with world() as here:
        await _post(here, KEY)
        for _ in range(2):
            error = problem(await _post(here, KEY, input="something else"), 422, "Idempotency-Key")
            assert error["code"] == "idempotency_key_reused"
            await here.projection.catch_up()  # from the tail the first time, from the projection the second
        assert len(here.sent) == 1


async def test_another_spelling_of_the_same_body_is_the_same_request() -> None:
    async with world() as here:
        await _post(here, KEY, tokenBudget=None)
        assert (await _post(here, KEY, agent="default")).headers["idempotency-replayed"] == "true"
        assert len(here.sent) == 1


async def test_keys_of_different_tenants_never_meet() -> None:
    async with world() as here:
        one, other = await _post(here, KEY, tenant="a"), await _post(here, KEY, tenant="b")
        assert one.json()["id"] != other.json()["id"]
        assert len(here.sent) == 2


async def test_requests_at_the_same_time_share_one_run_and_one_record() -> None:
    async with world() as here:
        here.broker.latency = 0.01
        answers = await asyncio.gather(*(_post(here, KEY) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert [answer.headers.get("idempotency-replayed") for answer in answers].count(None) == 1
        assert len(here.sent) == 1
        assert here.projection.asked.count("applied") <= 2, "they share one look-up"


async def test_different_bodies_at_the_same_time_are_one_run_and_one_refusal() -> None:
    async with world() as here:
        here.broker.latency = 0.01
        answers = await asyncio.gather(_post(here, KEY, input="a"), _post(here, KEY, input="b"))
        assert sorted(answer.status_code for answer in answers) == [202, 422]
        assert len(here.sent) == 1


async def test_the_loser_of_a_race_between_two_processes_learns_it() -> None:
    """Another process produced under the same key between our look-up and our record: the first record in the log won."""
    async with world() as here:
        service = here.client._transport.app.state.service  # type: ignore[attr-defined]
        send = service.commands.send

        async def overtaken(command: Command) -> tuple[int, int]:
            assert isinstance(command, RunRequested)
            await send(RunRequested(run_id=command.run_id, agent="other", input="other", request_digest="other"))
            return await send(command)  # type: ignore[no-any-return]

        service.commands.send = overtaken
        assert problem(await _post(here, KEY), 422)["code"] == "idempotency_key_reused"


async def test_what_was_accepted_stays_accepted_when_the_race_cannot_be_looked_at() -> None:
    async with world() as here:
        service = here.client._transport.app.state.service  # type: ignore[attr-defined]
        send = service.commands.send

        async def last_act(command: Command) -> tuple[int, int]:
            try:
                return await send(command)  # type: ignore[no-any-return]
            finally:
                here.projection.up = False

        service.commands.send = last_act
        assert (await _post(here, KEY)).status_code == 202


async def test_a_run_that_was_produced_straight_to_the_log_owns_its_id() -> None:
    async with world() as here:
        service = here.client._transport.app.state.service  # type: ignore[attr-defined]
        await service.commands.send(RunRequested(run_id=run_id_of(None, "order-17"), agent="default", input="go"))
        assert problem(await _post(here, KEY), 422)["code"] == "idempotency_key_reused"


async def test_a_failed_attempt_is_not_remembered() -> None:
    async with world() as here:
        here.broker.stop()
        problem(await _post(here, KEY), 503)
        here.broker.start()
        assert (await _post(here, KEY)).headers.get("idempotency-replayed") is None
        assert len(here.sent) == 1


async def test_a_key_that_cannot_be_looked_up_is_503_and_not_a_second_run() -> None:
    async with world() as here:
        await _post(here, KEY)
        here.projection.up = False
        assert problem(await _post(here, KEY), 503)["code"] == "projection_unavailable"
        assert len(here.sent) == 1


async def test_a_record_whose_fate_is_unknown_is_found_by_the_next_attempt() -> None:
    async with world() as here:
        service = here.client._transport.app.state.service  # type: ignore[attr-defined]
        send = service.commands.send

        async def answer_lost(command: Command) -> tuple[int, int]:
            await send(command)
            raise LogUnavailable("timed out")

        service.commands.send = answer_lost
        run_id = problem(await _post(here, KEY), 503)["runId"]
        again = await _post(here, KEY)
        assert (again.status_code, again.json()["id"], again.headers["idempotency-replayed"]) == (202, run_id, "true")
        assert len(here.sent) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "naïve", "a\tb"])
async def test_a_key_is_visible_ascii(key: str) -> None:
    async with world() as here:
        headers = [(b"Idempotency-Key", key.encode())]
        problem(await here.client.post("/api/runs", json={"input": "go"}, headers=headers), 422, "Idempotency-Key")
        assert not here.sent


async def test_two_keys_are_none() -> None:
    async with world() as here:
        headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        problem(await here.client.post("/api/runs", json={"input": "go"}, headers=headers), 422, "Idempotency-Key")


def test_the_id_of_a_key_never_changes() -> None:
    """A later build must find the runs of an earlier one."""
    assert run_id_of(None, "order-17") == run_id_of("", "order-17") == "618cfad6-616a-5c62-ba72-e55d14f0c80a"


async def _post(here: World, headers: dict[str, str], **body: Any) -> httpx.Response:
    return await here.client.post("/api/runs", json={"input": "go", **body}, headers=headers)
