"""Totals of tokens and money in SQL are those of the API's own ledger, less what was in flight at a kill: without crash, with 20.

The ledger is the strict fake's; what its hits cost is worked out here, from prices written down a second time.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from runfold.agents import Agent
from runfold.core.events import ModelStepCompleted, ModelStepFailed, Record, Status
from runfold.testing import Script, sse
from runfold.testing.fake_api.ledger import Hit
from runfold_projector.batch import Batch
from runfold_projector.partition import Partition
from runfold_projector.store import migrate
from tests.cases.engine_scene import Scene, recording, stage
from tests.integration.projecting import probe
from tests.tables import assert_tables_equal_fold

RUNS = 40
KINDS = ("input_tokens", "output_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "cache_read_tokens")
PRICES = {  # USD per million, by kind
    "claude-sonnet-4-6": ("3", "15", "3.75", "6", "0.30"),
    "claude-haiku-4-5": ("1", "5", "1.25", "2", "0.10"),
}
AGENTS = {"default": "claude-sonnet-4-6", "cheap": "claude-haiku-4-5", "odd": "claude-unknown-9"}
BROKEN = {"input_tokens": 70, "output_tokens": 1}  # what a stream that breaks has reported by then
Counts = tuple[int, ...]
NOTHING: Counts = (0, 0, 0, 0, 0)


@dataclass
class Spent:
    """Of answers, and of failed attempts."""

    answers: int = 0
    tokens: Counts = NOTHING
    cost: Decimal | None = None
    unpriced: int = 0
    wasted: int = 0
    wasted_cost: Decimal = field(default_factory=Decimal)


def script(chance: Random, model: str) -> Script:
    """Some turns with tools and usage of all kinds; some attempts fail, with and without usage."""
    found = Script()
    for turn in range(chance.randint(1, 3)):
        if chance.random() < 0.3:
            broken = sse.message_start(model=model, usage=BROKEN), sse.text_start(), sse.text_delta("Hel")
            found = found.then_fail(529) if chance.random() < 0.5 else found.then_sse(*broken)
        call = {"type": "tool_use", "id": f"t{turn}", "name": "act", "input": {}}
        found = found.then_message([call], "tool_use", usage(chance))
    if chance.random() < 0.3:
        found = found.then_message([{"type": "text", "text": "cu"}], "max_tokens", usage(chance)).again()
    return found.then_message([{"type": "text", "text": "done"}], "end_turn", usage(chance))


def usage(chance: Random) -> dict[str, Any]:
    five, hour = chance.choice([0, chance.randint(1, 3_000)]), chance.choice([0, chance.randint(1, 3_000)])
    return {
        "input_tokens": chance.randint(1, 500),
        "output_tokens": chance.randint(1, 500),
        "cache_creation_input_tokens": five + hour,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        "cache_read_input_tokens": chance.choice([0, chance.randint(1, 50_000)]),
        "service_tier": "standard",
    }


def counts(reported: dict[str, Any]) -> Counts:
    split = reported.get("cache_creation", {})
    return (
        reported["input_tokens"],
        reported["output_tokens"],
        split.get("ephemeral_5m_input_tokens", 0),
        split.get("ephemeral_1h_input_tokens", 0),
        reported.get("cache_read_input_tokens", 0),
    )


def price(model: str, tokens: Counts) -> Decimal | None:
    if model not in PRICES:
        return None
    return sum((n * Decimal(rate) / 10**6 for n, rate in zip(tokens, PRICES[model], strict=True)), Decimal(0))


def logged(scene: Scene) -> set[str | None]:
    """Requests whose end is in the log."""
    events = [record.event for record in scene.records() if isinstance(record, Record)]
    return {event.request_id for event in events if isinstance(event, ModelStepCompleted | ModelStepFailed)}


async def kill_often(scene: Scene, chance: Random, kills: int) -> set[int]:
    """One worker after the other, while the API is asked; the numbers of the hits in flight then."""
    lost: set[int] = set()
    for number in range(kills):
        target = len(scene.api.requests) + chance.randint(3, 5)
        await scene.api.until(partial(_asked, scene, target))
        for _ in range(chance.randrange(30)):  # it comes a little later
            await asyncio.sleep(0)
        (process,) = scene.processes
        await scene.kill(process)
        heard = logged(scene)
        lost |= {hit.number for hit in scene.api.requests if hit.request_id not in heard}
        scene.start(f"successor-{number}", max_model_calls=2)
    return lost


def _asked(scene: Scene, times: int) -> bool:
    return len(scene.api.requests) >= times


def at_rest(scene: Scene) -> bool:
    """All runs that the worker holds wait for a person; those that ended it holds no more."""
    partitions = [partition for process in scene.processes for partition in process.worker.partitions.values()]
    flows = [flow for partition in partitions for flow in partition.flows.values()]
    return any(partition.owned for partition in partitions) and all(flow.run.status is Status.SUSPENDED for flow in flows)


def project(dsn: str, scene: Scene) -> None:
    migrate(dsn)
    with probe(dsn) as writer:
        partition, batch = Partition(writer.positions(1)[0]), Batch()
        for delivery in scene.records():
            partition.apply(delivery, batch)
        partition.close(batch)
        writer.write(batch)


def ledger(hits: list[Hit], runs: dict[str, tuple[str | None, str]]) -> dict[tuple[str | None, str, str], Spent]:
    """What the API's hits add up to, by tenant, agent and model."""
    found: dict[tuple[str | None, str, str], Spent] = defaultdict(Spent)
    for hit in hits:
        if hit.status != 200:
            continue
        tenant, agent = runs[hit.conversation]
        model = AGENTS[agent]
        spent = found[tenant, agent, model]
        if "usage" in hit.message:
            add(spent, counts(hit.message["usage"]), model)
        else:
            spent.wasted += sum(counts(BROKEN))
            spent.wasted_cost += price(model, counts(BROKEN)) or 0
    return dict(found)


def add(spent: Spent, tokens: Counts, model: str) -> None:
    cost = price(model, tokens)
    spent.answers += 1
    spent.tokens = tuple(map(sum, zip(spent.tokens, tokens, strict=True)))
    spent.unpriced += cost is None
    spent.cost = spent.cost if cost is None else (spent.cost or 0) + cost


def by_view(dsn: str) -> dict[tuple[str | None, str, str], Spent]:
    """The same, as the view has it: over all days."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        rows = connection.execute("select * from spend").fetchall()
    found: dict[tuple[str | None, str, str], Spent] = defaultdict(Spent)
    for row in rows:
        spent = found[row["tenant"], row["agent"], row["model"]]
        spent.answers += row["answers"]
        spent.tokens = tuple(had + row[kind] for had, kind in zip(spent.tokens, KINDS, strict=True))
        spent.cost = spent.cost if row["cost_usd"] is None else (spent.cost or 0) + row["cost_usd"]
        spent.unpriced += row["answers_without_price"]
        spent.wasted += row["wasted_tokens"]
        spent.wasted_cost += row["wasted_cost_usd"] or 0
    return dict(found)


@pytest.mark.parametrize(("seed", "kills"), [(1, 0), (2, 0), *((seed, 20) for seed in range(3, 7))])
async def test_totals_in_sql_are_those_of_the_api(dsn: str, seed: int, kills: int) -> None:
    print(f"{seed=} {kills=}")
    chance = Random(seed)
    runs = {f"run {n}.": (chance.choice(["acme", "globex", None]), chance.choice(list(AGENTS))) for n in range(RUNS)}
    async with stage({text: script(chance, AGENTS[agent]) for text, (_, agent) in runs.items()}) as scene:
        act = recording(scene.ledger, "act")
        scene.serve(act, agents=[Agent(name, AGENTS[name], max_tokens=1000, tools=[act]) for name in ("cheap", "odd")])
        scene.start(max_model_calls=2)
        ids = [await scene.submit(text, tenant=tenant, agent=agent) for text, (tenant, agent) in runs.items()]
        in_flight = await kill_often(scene, chance, kills)
        await scene.notes.until(lambda: set(ids) <= scene.notes.runs.keys() or bool(kills), 60)
        await scene.notes.until(partial(at_rest, scene), 60)
        await scene.quiet()
        project(dsn, scene)
        assert_tables_equal_fold(dsn, [scene.records()])
        heard = logged(scene)
        lost = [hit for hit in scene.api.requests if hit.request_id not in heard]
        print(f"{len(scene.api.requests)} hits, of them in flight at a kill and lost: {[hit.number for hit in lost]}")
        assert {hit.number for hit in lost} <= in_flight, "nothing else is missing"
        assert bool(lost) == bool(kills)
        assert by_view(dsn) == ledger([hit for hit in scene.api.requests if hit not in lost], runs)
        check_runs(dsn, lost)


def check_runs(dsn: str, lost: list[Hit]) -> None:
    """The table of runs adds up to the same as that of steps; what was lost is bounded beside the totals."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        (runs,) = connection.execute(
            "select sum(total_tokens) as tokens, sum(wasted_tokens) as wasted, sum(unsettled_tokens) as unsettled, "
            "sum(cost_usd) as cost from run"
        )
        (steps,) = connection.execute("select sum(cost_usd) as cost, sum(wasted_tokens) as wasted from run_step")
        (priced,) = connection.execute(
            "select count(*) as runs from run where agent = 'odd' and cost_usd is not null and steps > 1"
        )
    assert (runs["cost"], runs["wasted"]) == (steps["cost"], steps["wasted"])
    assert priced["runs"] == 0, "an unknown price is null, never zero"
    said = sum(hit.message["usage"]["output_tokens"] for hit in lost if "usage" in hit.message)
    assert runs["unsettled"] >= said
