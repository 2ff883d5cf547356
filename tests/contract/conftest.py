"""Every test that asks for a `world` runs once in memory and once on Kafka."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.log_suite import PARTITIONS, World
from tests.contract.log_worlds import kafka_world, memory_world


@pytest.fixture(params=["memory", "kafka"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    opened = memory_world() if request.param == "memory" else kafka_world(request.getfixturevalue("bootstrap"))
    async with opened as world:
        yield world


@pytest.fixture
async def proof(world: World) -> bytes:
    """Of the group's only member."""
    return await (await world.seat()).owning(PARTITIONS)
