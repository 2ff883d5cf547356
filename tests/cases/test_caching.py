"""Prompt caching as a run feels it: markers on every request, none in the log, and cached tokens wherever tokens are counted."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from runfold.core.events import ModelStepCompleted, ModelStepStarted, OwnerEvent, Status, Usage
from runfold.model import Prices
from runfold.testing import Script
from tests.cases.engine_scene import MODEL, recording, stage

SCRIPT = Script().then_tool_use("a", "act", {}).then_tool_use("b", "act", {}).then_text("done")


def second_answer(event: OwnerEvent) -> bool:
    return isinstance(event, ModelStepCompleted) and event.seq == 3


@pytest.mark.parametrize("ttl", ["5m", "1h"])
async def test_what_one_step_wrote_the_next_one_reads_also_after_a_crash(ttl: str) -> None:
    async with stage(SCRIPT, caching=True) as scene:
        scene.serve(recording(scene.ledger, "act"), system="Be brief. " * 50, cache_ttl=ttl)
        killed = scene.kill_at(second_answer, committed=True)
        process = scene.start()
        id_ = await scene.submit()
        await killed
        process = scene.start()
        run = await scene.settled(id_)
        assert run.status is Status.SUCCEEDED
        first, second, third = [event.usage for event in scene.log(id_, ModelStepCompleted)]
        assert first.cache_read_tokens == 0
        assert (first.cache_write_1h_tokens > 100) is (ttl == "1h")
        assert second.cache_read_tokens == written(first) > 100
        assert third.cache_read_tokens == written(first) + written(second)
        assert second.input_tokens == third.input_tokens == 0
        assert run.usage == first + second + third

        assert "cache_control" not in repr(scene.records()), "markers are no part of what happened"
        digests = [event.prefix_digest for event in scene.log(id_, ModelStepStarted)]
        assert len(set(digests)) == len(digests) == 3
        cached = process.sample("agent_tokens_total", model=MODEL, direction="cache_read")
        assert cached == third.cache_read_tokens, "the second worker has seen the last step"
        assert run.cost == sum((price(usage) for usage in (first, second, third)), Decimal(0))
        assert price(third) < price(Usage(input_tokens=third.total - third.output_tokens, output_tokens=third.output_tokens)) / 2


def written(usage: Usage) -> int:
    return usage.cache_write_5m_tokens + usage.cache_write_1h_tokens


def price(usage: Usage) -> Decimal:
    cost = Prices.load().cost(MODEL, usage, datetime.now(UTC).date())
    assert cost is not None
    return cost


async def test_an_agent_may_do_without() -> None:
    async with stage(SCRIPT, caching=True) as scene:
        scene.serve(recording(scene.ledger, "act"), system="Be brief.", cache_ttl="off")
        run = await scene.play()
        assert "cache_control" not in repr([hit.body for hit in scene.api.requests])
        assert run.usage.cache_read_tokens == 0
