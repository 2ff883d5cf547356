"""`runfold worker` as a process: what becomes of runs when it is killed, asked to stop, or cannot start."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from runfold.core.events import Status, ToolStepStarted
from runfold.testing import Script
from tests.cases.harness import TEST_PROFILE, Scene, scene
from tests.cases.harness_processes import slowness, wait_for_end
from tests.cases.harness_world import Visit

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPTS = {
    "prints": Script().then_tool_use("toolu_s", "shout", {}).then_text("done"),
    "held": Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done"),
    "load": Script().then_tool_use("toolu_b", "b", {}).after(0.5).then_tool_use("toolu_c", "c", {}).after(0.5).then_text("done"),
}
SESSION_SECONDS = int(TEST_PROFILE["RUNFOLD_SESSION_TIMEOUT_MS"]) / 1000
LOAD = 8  # runs at the same time


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("workers"), SCRIPTS, partitions=5) as stage:
        await stage.start("worker-A", "worker-B")
        yield stage
        await stage.check_all(interruptions=4)


async def held_in_a_tool(stage: Scene, partition: int | None = None) -> tuple[str, str, Visit]:
    """A run whose tool has done its effect and does not return; its worker's name, and who is held."""
    stage.world.hold("effect a")
    run_id = await stage.post_to(partition, f"held {uuid4()}")
    visit = await stage.held("effect a")
    return run_id, stage.owner(stage.partition_of(run_id)), visit


async def test_t04_what_a_tool_prints_is_in_the_workers_log_and_nowhere_else(stage: Scene) -> None:
    run_id = await stage.post(f"prints {uuid4()}")
    await stage.ended(run_id)
    worker = stage.owner(stage.partition_of(run_id))
    await stage.until("the pipe to be read", lambda: f"past Python {run_id}" in stage.processes.messages(worker))  # T04.1
    records = {record["message"]: record for record in map(json.loads, stage.processes.output()[worker])}
    assert records[f"hello from {run_id}"]["runfold"]["run"]["id"] == run_id, "T04.1"
    (result,) = (hit.body["messages"][2]["content"][0]["content"] for hit in stage.model.requests[-1:])
    assert result == "shouted", "T04.2"
    await stage.check(run_id)


async def test_after_kill_9_of_a_worker_its_keeper_goes_on_at_once(stage: Scene) -> None:
    run_id, worker, visit = await held_in_a_tool(stage)
    killed_at = time.monotonic()
    stage.processes.kill_worker(visit.pid)
    await stage.until("the call to be made again", lambda: starts(stage, run_id) == 2)
    assert time.monotonic() - killed_at < 2 * slowness()
    assert stage.owner(stage.partition_of(run_id)) == worker
    await stage.ended(run_id)
    await stage.check(run_id, interruptions=1)


async def test_a_keeper_whose_workers_keep_dying_leaves_them_to_others(stage: Scene) -> None:
    """Three deaths within a minute: the group is told, no session has to time out, and the keeper comes back."""
    partition = next(number for number in range(stage.partitions) if not deaths(stage, stage.owner(number)))
    run_id, worker, visit = await held_in_a_tool(stage, partition)
    for _ in range(2):
        stage.world.hold("effect a")
        stage.processes.kill_worker(visit.pid)
        await stage.until("nobody to be held", lambda: "effect a" not in stage.world.held)
        visit = await stage.held("effect a")
    assert stage.owner(partition) == worker
    killed_at, leases = time.monotonic(), stage.leases(worker)
    stage.processes.kill_worker(visit.pid)
    await stage.ended(run_id)
    assert stage.owner(partition) != worker
    assert time.monotonic() - killed_at < 2 * slowness()
    await stage.until("the keeper to come back", lambda: stage.leases(worker) > leases)
    assert time.monotonic() - killed_at > 4
    assert any("out of the group for 5 s" in message for message in stage.processes.messages(worker))
    await stage.check(run_id, interruptions=3)


async def test_a_worker_ends_with_its_keeper(stage: Scene) -> None:
    """Also in the middle of a tool; another worker goes on when the lease of the dead one has run out."""
    run_id, worker, visit = await held_in_a_tool(stage)
    stage.processes.kill_keeper(worker)
    assert await asyncio.to_thread(wait_for_end, visit.pid, 2)
    await stage.ended(run_id)
    assert stage.run(run_id).status is Status.SUCCEEDED
    assert stage.owner(stage.partition_of(run_id)) != worker
    await stage.check(run_id, interruptions=1)


async def test_a_planned_stop_waits_for_a_step_that_outlasts_the_session(stage: Scene) -> None:
    """As many model calls do: the seat in the group is kept until the step is in the log."""
    await staff(stage, 4)
    run_id, worker, _ = await held_in_a_tool(stage)
    stopping = asyncio.create_task(stage.processes.stop(worker))
    ended, _ = await asyncio.wait({stopping}, timeout=2 * SESSION_SECONDS)
    assert not ended
    stage.world.release("effect a")
    await stopping
    await stage.ended(run_id)
    assert stage.owner(stage.partition_of(run_id)) != worker
    assert starts(stage, run_id) == 1
    await stage.check(run_id)


async def test_planned_stops_under_load_repeat_no_model_call(stage: Scene) -> None:
    """SIGTERM: what is under way ends and is committed, nothing new begins, the next owner goes on from there."""
    await staff(stage, 3)
    run_ids, stopped = list[str](), asyncio.Event()

    async def keep_running() -> None:
        while not stopped.is_set():
            run_ids.append(run_id := await stage.post(f"load {uuid4()}"))
            await stage.ended(run_id)

    async with asyncio.TaskGroup() as load:
        for _ in range(LOAD):
            load.create_task(keep_running())
        *early, last = sorted(stage.processes.names)
        for number, name in enumerate(early, 1):
            await stage.until("runs to be under way", lambda wanted=number * LOAD: len(run_ids) >= wanted)  # type: ignore[misc]
            await stage.processes.stop(name)
        await stage.start("last")
        await stage.processes.stop(last)
        stopped.set()
    assert {stage.run(run_id).status for run_id in run_ids} == {Status.SUCCEEDED}
    assert sum(hit.conversation.startswith("load") for hit in stage.model.requests) == 3 * len(run_ids)
    await stage.check(*run_ids)


async def staff(stage: Scene, workers: int) -> None:
    """Have so many workers at least."""
    await stage.start(*(f"next-{number}" for number in range(workers - len(stage.processes.names))))


def deaths(stage: Scene, worker: str) -> int:
    return sum(" died " in message for message in stage.processes.messages(worker))


def starts(stage: Scene, run_id: str) -> int:
    return sum(isinstance(record.event, ToolStepStarted) for record in stage.records(run_id))


@pytest.mark.parametrize(
    ("app", "reason"),
    [("no_such_module:app", "there is no module 'no_such_module'"), ("no_such_file.py:app", "there is no file no_such")],
)
async def test_an_app_that_cannot_be_loaded_ends_the_process_and_says_why(stage: Scene, app: str, reason: str) -> None:
    """Whatever its place in the group is at that moment."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runfold.cli", "worker", "--app", app, "--group", f"{stage.settings.group}-misfit",
        env={**os.environ, "RUNFOLD_BOOTSTRAP": stage.settings.bootstrap, "RUNFOLD_TOPIC": stage.settings.topic},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == os.EX_CONFIG, output
    assert any(reason in json.loads(line)["message"] for line in output.splitlines())
