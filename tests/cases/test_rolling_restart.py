"""Z04: three workers are restarted one by one, two rounds, while they carry runs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import ModelStepCompleted, Status
from runfold.testing import Script
from tests.cases.harness import PATIENCE, POLL_SECONDS, Scene, scene
from tests.cases.harness_kafka import is_stable
from tests.cases.harness_processes import slowness

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKERS = ("worker-A", "worker-B", "worker-C")
ROUNDS = 2
RUNS_EACH = 10  # posted before a restart: 60 in all
CALLS = 5  # of the model, by each run
MODEL_SECONDS = 0.3
AT_ONCE = 2  # calls of one worker: so the load outlasts a restart
STABLE_SECONDS = 15.0


def script() -> Script:
    calls = Script()
    for number in range(1, CALLS):
        calls = calls.then_tool_use(f"toolu_{number}", "a", {"n": number}).after(MODEL_SECONDS)
    return calls.then_text("done").after(MODEL_SECONDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("rolling"), script(), partitions=12) as house:
        await house.start(*WORKERS, max_model_calls=AT_ONCE)
        yield house


async def terminated(house: Scene, name: str) -> None:
    await house.processes.stop(name)


async def killed(house: Scene, name: str) -> None:
    house.processes.kill_machine(name)


@pytest.mark.parametrize(("end", "lost"), [(terminated, 0), (killed, AT_ONCE)], ids=["SIGTERM", "SIGKILL"])
async def test_restarts_one_by_one_cost_no_run(house: Scene, end: Callable[[Scene, str], Awaitable[None]], lost: int) -> None:
    """Z04.1 to Z04.3. A worker has ``lost`` calls in flight at most when it ends."""
    before, run_ids = house.model.hits(), list[str]()
    for name in WORKERS * ROUNDS:
        run_ids += [await house.post(f"Z04 {uuid4()}") for _ in range(RUNS_EACH)]
        await house.until(f"a call of {name} to be under way", lambda: calling(house, name, run_ids))  # noqa: B023
        await end(house, name)
        await house.start(name, max_model_calls=AT_ONCE)
    began = time.monotonic()
    await stable(house)
    assert time.monotonic() - began < STABLE_SECONDS * slowness(), "Z04.3"
    await house.ended(*run_ids, seconds=60)
    assert [house.run(one).status for one in run_ids] == [Status.SUCCEEDED] * len(run_ids), "Z04.1, Z04.3"
    assert [house.kinds(one).count("RunFinished") for one in run_ids] == [1] * len(run_ids), "Z04.1"
    answers = [record for one in run_ids for record in house.records(one) if isinstance(record.event, ModelStepCompleted)]
    restarts = len(WORKERS) * ROUNDS
    assert len(answers) == len(run_ids) * CALLS
    assert len(answers) <= house.model.hits() - before <= len(answers) + lost * restarts, "Z04.2"
    await house.check(*run_ids, interruptions=restarts if lost else 0)
    await house.read()  # O8


def calling(house: Scene, name: str, run_ids: list[str]) -> bool:
    open_ = (one for one in run_ids if one not in house.finished and house.owner(house.partition_of(one)) == name)
    return any(house.kinds(one)[-1:] == ["ModelStepStarted"] for one in open_)


async def stable(house: Scene) -> None:
    async with asyncio.timeout(PATIENCE * slowness()):
        while not await asyncio.to_thread(is_stable, house.settings):  # noqa: ASYNC110  # a group tells nobody that it changed
            await asyncio.sleep(POLL_SECONDS)
