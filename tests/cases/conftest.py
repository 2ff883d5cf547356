"""The stage that cases on real parts share: two keepers whose workers can be held and killed anywhere.

It costs seconds to set up, and whatever a case does to it the next one must find it as good as new: that is the point of Runfold.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from runfold.testing import NONCE, Script
from tests.cases.harness import Scene, scene
from tests.cases.harness_processes import HELD

SCRIPTS = {  # by what a run's input begins with
    "R01": Script().then_tool_use("toolu_a", "a", {"n": 1}, 100, 20).then_text(f"The nonce is {NONCE}.", 200, 10),
    "C02": Script().then_tools([(f"toolu_{name}", name, {"n": 1}) for name in "abcd"]).then_text("done"),
    "K09": Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done"),
    "": Script().then_text("done"),
}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("cases"), SCRIPTS) as shared:
        await shared.start("worker-A", "worker-B", entry=HELD, max_tool_calls=2)
        yield shared
        await shared.check_all(interruptions=1)  # no run of any case was killed at twice


@pytest_asyncio.fixture(loop_scope="package")
async def stage(shared: Scene) -> AsyncIterator[Scene]:
    """The shared stage, one worker on it at least and nobody held."""
    yield shared
    shared.world.release_all()


@pytest_asyncio.fixture(loop_scope="package")
async def pair(stage: Scene) -> Scene:
    """The shared stage with two workers, so that one machine may be lost."""
    for name in {"worker-A", "worker-B"} - stage.processes.names:
        await stage.start(name, entry=HELD, max_tool_calls=2)
    return stage
