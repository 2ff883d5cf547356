"""K11: retention or compaction removed the beginning of an open run.

A worker refuses such a topic. Where its check is told that no run lives longer than the retention, and one does, that run is
shown as what it is: nobody can carry it. Records are deleted by a request for it here, as retention does it at its own time.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from runfold.config import Settings
from runfold.core.events import Reason, RunResumeRequested, Status
from runfold.log.kafka import create_topic
from runfold.testing import Script
from tests.cases.harness import START_SECONDS, Scene, scene
from tests.cases.harness_kafka import forget
from tests.cases.harness_processes import APP, CLI, HELD, ROOT

pytestmark = pytest.mark.asyncio(loop_scope="module")

RETENTION_MS = 60_000
REFUSED = {  # what is found: what is wanted
    ("retention.ms", str(RETENTION_MS)): "-1 (unlimited)",
    ("cleanup.policy", "compact"): "delete",
}
SCRIPTS = {
    "suspended": Script().then_fail(401).then_text("never said"),
    "running": Script().then_tool_use("toolu_a", "a", {}).then_text("never said"),
    "": Script().then_text("done"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("retention"), SCRIPTS, partitions=1) as house:
        await house.start("worker-A", entry=HELD)
        yield house


def alter(settings: Settings, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, settings.topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize("found", REFUSED, ids=lambda found: found[0])
async def test_a_worker_refuses_a_topic_that_forgets(bootstrap: str, found: tuple[str, str]) -> None:
    """K11.1"""
    settings = Settings(bootstrap=bootstrap, topic=f"forgets-{uuid4().hex[:8]}")
    await asyncio.to_thread(create_topic, settings, 1, 1)
    await asyncio.to_thread(alter, settings, *found)
    environment = {**os.environ, "RUNFOLD_BOOTSTRAP": bootstrap, "RUNFOLD_TOPIC": settings.topic}
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, *CLI, "worker", "--app", APP),
        cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(START_SECONDS):
        said, _ = await worker.communicate()
    assert worker.returncode not in (0, None), "K11.1: it does not start"
    name, value = found
    assert f"{name} is {value}, wanted {REFUSED[found]}" in said.decode(), "K11.1: what was found and what is wanted"


async def test_a_run_without_its_beginning_is_set_aside_and_nothing_is_asked_for_it(house: Scene) -> None:
    """K11.2: one run of which nothing is left, and one of which the end is left: the result of a tool, and no question."""
    house.world.hold("effect a")
    suspended, running = await house.post(f"suspended {uuid4()}"), await house.post(f"running {uuid4()}")
    await house.held("effect a")
    await house.at_last(running, "ToolStepStarted")
    await house.at_last(suspended, "RunSuspended")
    await house.projected()
    began, hits = house.run(running).first_offset, {one: house.hits(one) for one in (suspended, running)}
    left = house.records(running)[-1].offset
    assert left > max(began, house.run(suspended).last_offset)
    house.processes.kill_machine("worker-A")
    await asyncio.to_thread(forget, house.settings, {0: left})
    await asyncio.to_thread(alter, house.settings, "retention.ms", str(RETENTION_MS))
    await house.start("worker-A", min_retention_ms=RETENTION_MS)

    good = await house.post(f"good {uuid4()}")
    await house.ended(good)
    assert house.run(good).status is Status.SUCCEEDED, "K11.2: the partition goes on"
    await house.read()
    await house.projected()
    await set_aside(house, suspended, running)
    assert f"offset {began} of partition 0, the log at {left}" in (await house.rows())[running]["detail"], "K11.2: clearly"

    ends = await house.ends()
    for act in ("resume", "cancel"):
        answer = await house.ask("POST", f"/api/runs/{suspended}/{act}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "history_lost"), "K11.2: it promises nothing"
    assert await house.ends() == ends
    await house.produce(RunResumeRequested(run_id=suspended, command_id=str(uuid4()), requested_by="somebody else"))
    await house.read()
    await house.projected()
    assert {one: house.hits(one) for one in hits} == hits, "K11.2: no request is sent for it"
    assert house.executions(running) == ["1/toolu_a"]

    await house.projector.stop()
    house.projector.start()
    await house.projected()
    await set_aside(house, suspended, running)
    assert [step["status"] for step in (await house.ask("GET", f"/api/runs/{running}/timeline")).json()] == ["DONE", "STARTED"]
    await house.check(good)


async def set_aside(house: Scene, *run_ids: str) -> None:
    for one in run_ids:
        shown = (await house.ask("GET", f"/api/runs/{one}")).json()
        assert (shown["status"], shown["reason"]) == (Status.SUSPENDED, Reason.HISTORY_LOST), "K11.2: the API still shows it"
