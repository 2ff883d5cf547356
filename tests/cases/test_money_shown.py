"""B02, B04, B08 through everything a user sees: the real API over a real PostgreSQL, real workers, the strict fake.

Only the log is in memory, and the tables move when the test says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from runfold.agents import Agent
from runfold.api.app import create_app
from runfold.core.events import ModelStepCompleted, RunFinished, Status
from runfold.log.memory import MemoryTail
from runfold.testing import Script
from runfold_projector.batch import Batch
from runfold_projector.partition import Partition
from runfold_projector.store import Reader, migrate
from tests.cases.engine_scene import Scene, recording, stage
from tests.integration.projecting import TOPIC, probe

DONE = Script().then_text("done")


@dataclass
class Desk:
    """Whoever asks."""

    scene: Scene
    dsn: str
    client: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(f"/api/runs{path}", json=body)

    async def submit(self, **body: Any) -> str:
        answer = await self.post("", **{"input": "go", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def get(self, path: str) -> Any:
        return (await self.client.get(f"/api/runs/{path}")).json()

    async def project(self) -> None:
        """The tables are level with the log."""
        await self.scene.quiet()
        await asyncio.to_thread(self._project)

    def _project(self) -> None:
        with probe(self.dsn) as writer:
            partition, batch = Partition(writer.positions(1)[0]), Batch()
            for delivery in self.scene.records():
                partition.apply(delivery, batch)
            partition.close(batch)
            if batch.moves:
                writer.write(batch)

    def row(self, run_id: str) -> dict[str, Any]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            (row,) = connection.execute("select * from run where id = %s", [run_id])
            return dict(row)

    def ends(self, run_id: str) -> int:
        return len(self.scene.log(run_id, RunFinished))


@asynccontextmanager
async def desk(scene: Scene, dsn: str) -> AsyncIterator[Desk]:
    migrate(dsn)
    reads = Reader(dsn, TOPIC)
    api = create_app(scene.commands, reads, MemoryTail(scene.broker))
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        with probe(dsn) as writer:
            writer.positions(1)
        yield Desk(scene, dsn, client)
    await reads.close()


# ---- B02


async def test_b02_v1_and_v3_ten_cancels_at_once_and_one_after_the_end(dsn: str) -> None:
    async with stage(Script().then_text("too late").held("model")) as scene, desk(scene, dsn) as here:
        scene.start()
        id_ = await here.submit()
        await scene.api.until_held("model")
        answers = await asyncio.gather(*(here.post(f"/{id_}/cancel") for _ in range(10)))
        assert {answer.status_code for answer in answers} <= {200, 202}, "B02.1"
        assert (await scene.settled(id_)).status is Status.CANCELLED
        scene.api.release("model")
        await here.project()
        assert here.ends(id_) == 1, "B02.1"
        again = await here.post(f"/{id_}/cancel")
        assert (again.status_code, again.json()["status"]) == (200, "CANCELLED"), "B02.3"
        await here.project()
        assert here.ends(id_) == 1, "B02.3"


async def test_b02_v2_and_v4_a_cancel_of_a_run_that_succeeded(dsn: str) -> None:
    async with stage(DONE) as scene, desk(scene, dsn) as here:
        scene.start()
        id_ = await here.submit()
        await here.project()
        await scene.settled(id_)
        records = scene.records()
        early = await here.post(f"/{id_}/cancel")  # the tables do not know of the end: B02.4
        assert early.status_code in (202, 409)
        await scene.cancel(id_)
        await here.project()
        refused = await here.post(f"/{id_}/cancel")
        assert (refused.status_code, refused.json()["error"]["status"]) == (409, "SUCCEEDED"), "B02.2"
        assert len(scene.records()) > len(records), "a cancel lies behind the end"
        assert scene.notes.runs[id_].status is Status.SUCCEEDED, "B02.4: fold"
        assert (here.row(id_)["status"], (await here.get(id_))["status"]) == ("SUCCEEDED", "SUCCEEDED"), "B02.2, B02.4"
        assert here.ends(id_) == 1


# ---- B04: what was spent is shown, and a higher limit lets the run go on

SPENDING = Script().then_tool_use("a", "act", {}, 300, 100).then_tool_use("b", "act", {}, 300, 100).then_text("done", 300, 100)


@pytest.mark.parametrize(
    ("limit", "higher"),
    [
        ({"tokenBudget": 1000}, {"tokenBudget": 1200}),
        ({"costCeilingUsd": 0.0055}, {"costCeilingUsd": 0.01}),  # 0.0024 a turn, and each prompt again at 0.001125
    ],
    ids=["tokens", "money"],
)
async def test_b04_v1_a_run_at_its_limit_says_so_and_goes_on_with_a_higher_one(
    dsn: str, limit: dict[str, Any], higher: dict[str, Any]
) -> None:
    async with stage(SPENDING) as scene, desk(scene, dsn) as here:
        scene.serve(recording(scene.ledger, "act"))
        scene.start()
        id_ = await here.submit(**limit)
        await scene.settled(id_)
        await here.project()
        run = await here.get(id_)
        assert (run["status"], run["reason"], scene.api.hits()) == ("SUSPENDED", "BUDGET", 2), "B04.1"
        assert (run["totalTokens"], run["costUsd"], run["onBudget"]) == (800, 0.0048, "SUSPEND"), "B04.1"
        assert "800 of 1000 tokens" in run["detail"] or "0.0048 of 0.0055 USD" in run["detail"], run["detail"]
        assert (await here.post(f"/{id_}/resume", **higher)).status_code == 202
        await scene.until(id_, lambda run: run.status is Status.SUCCEEDED)
        await here.project()
        assert (await here.get(id_))["status"] == "SUCCEEDED"
        assert scene.api.hits() == 3


async def test_a_run_fails_at_its_limit_where_its_request_says_so(dsn: str) -> None:
    async with stage(SPENDING) as scene, desk(scene, dsn) as here:
        scene.serve(recording(scene.ledger, "act"))
        scene.start()
        id_ = await here.submit(tokenBudget=1000, onBudget="FAIL")
        await scene.settled(id_)
        await here.project()
        run, row = await here.get(id_), here.row(id_)
        assert (run["status"], run["reason"], run["onBudget"]) == ("FAILED", "BUDGET", "FAIL")
        assert (row["status"], row["reason"], row["on_budget"]) == ("FAILED", "BUDGET", "FAIL")
        assert (await here.post(f"/{id_}/resume", tokenBudget=5000)).status_code == 409


# ---- B08


async def test_b08_v2_an_unknown_cost_is_null_everywhere(dsn: str) -> None:
    async with stage(DONE) as scene, desk(scene, dsn) as here:
        scene.serve(agents=[Agent("unpriced", "claude-unknown-9")])
        scene.start()
        id_ = await here.submit(agent="unpriced", tenant="acme")
        await scene.settled(id_)
        await here.project()
        run, (step,) = await here.get(id_), await here.get(f"{id_}/timeline")
        assert (run["status"], run["costUsd"], step["costUsd"]) == ("SUCCEEDED", None, None), "B08.2: API"
        assert here.row(id_)["cost_usd"] is None, "B08.2: SQL"
        with psycopg.connect(dsn) as connection:
            (spent,) = connection.execute("select tenant, agent, answers, cost_usd, answers_without_price from spend").fetchall()
        assert spent == ("acme", "unpriced", 1, None, 1)


REPORTED: list[tuple[dict[str, Any], str | None]] = [  # beside tokens for 0.0045 USD: what multiplies it
    ({}, "1"),
    ({"service_tier": "standard", "speed": "standard", "inference_geo": "not_available"}, "1"),
    ({"service_tier": "batch"}, "0.5"),
    ({"inference_geo": "us"}, "1.1"),
    ({"inference_geo": "us", "service_tier": "batch"}, "0.55"),
    ({"service_tier": "priority"}, None),
    ({"inference_geo": "moon"}, None),
    ({"speed": "fast"}, None),  # this model has no such price
    ({"server_tool_use": {"web_search_requests": 2}}, None),
    ({"server_tool_use": {"web_search_requests": 0}, "output_tokens_details": {"thinking_tokens": 4}}, "1"),
    ({"iterations": [{"input_tokens": 9}]}, None),
    ({"dark_tokens": 12}, None),
]


def reporting(said: dict[str, Any]) -> Script:
    usage = {"input_tokens": 1000, "output_tokens": 100, **said}
    call = {"type": "tool_use", "id": "a", "name": "act", "input": {}}
    return Script().then_message([call], "tool_use", usage).then_text("done", 0, 0)


async def test_b08_what_the_price_depends_on_is_in_it_or_the_cost_is_unknown_and_a_ceiling_closes(dsn: str) -> None:
    scripts = {f"case {n}": reporting(said) for n, (said, _) in enumerate(REPORTED)}
    async with stage(scripts) as scene, desk(scene, dsn) as here:
        scene.serve(recording(scene.ledger, "act"))
        scene.start()
        ids = [await here.submit(input=text, costCeilingUsd=1) for text in scripts]
        for id_ in ids:
            await scene.settled(id_)
        await here.project()
        for (said, factor), text, id_ in zip(REPORTED, scripts, ids, strict=True):
            expected = None if factor is None else Decimal("0.0045") * Decimal(factor)
            (first, *_), row = scene.log(id_, ModelStepCompleted), here.row(id_)
            assert (first.cost, row["cost_usd"]) == (expected, expected), said
            stopped = ("SUSPENDED", "BUDGET", 1) if factor is None else ("SUCCEEDED", "FINAL_ANSWER", 2)
            assert (row["status"], row["reason"], scene.api.hits(text)) == stopped, f"B08.3: {said}"
