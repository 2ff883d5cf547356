"""`runfold verify-log` and `runfold export` on the topic of real workers: one is killed, one is lost with its machine."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from runfold.audit import verify
from runfold.audit.files import MANIFEST, ExportedLog
from runfold.cli.app import app
from runfold.core.errors import RunfoldError
from runfold.core.events import Record, Status, ToolStepFinished
from runfold.testing import Script
from tests.cases.harness import Scene, scene

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = Script().then_tool_use("toolu_a", "a", {"n": 1}).then_text("done")
PARTITIONS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A topic with ended runs, one that waits in a tool, a worker that was killed and a keeper that was lost."""
    async with scene(bootstrap, postgres, tmp_path_factory.mktemp("verify"), SCRIPT, partitions=PARTITIONS) as stage:
        await stage.start("worker-A", "worker-B")
        for kill in ("worker", "machine"):
            stage.world.hold("effect a")
            run_id = await stage.post(f"killed {kill} {uuid4()}")
            visit = await stage.held("effect a")
            if kill == "worker":
                stage.processes.kill_worker(visit.pid)
            else:
                stage.processes.kill_both(stage.owner(stage.partition_of(run_id)), visit.pid)
            await stage.ended(run_id)
        await stage.ended(*[await stage.post(f"undisturbed {n} {uuid4()}") for n in range(6)])
        stage.world.hold("effect a")
        await stage.post(f"open {uuid4()}")
        await stage.held("effect a")
        yield stage


async def runfold(*words: object) -> tuple[int, str, str]:
    """A command's exit code and what it says on stdout and stderr. In a thread: a process has much to import."""
    result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, words)])
    refusal = str(result.exception) if isinstance(result.exception, RunfoldError) else ""
    return result.exit_code, result.stdout, result.stderr + refusal


async def process(*words: object) -> tuple[int, str]:
    """The same of a process: its exit code, and what it says."""
    command = [sys.executable, "-m", "runfold.cli", *map(str, words)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    async with asyncio.timeout(60):
        said, _ = await child.communicate()
    return child.returncode or 0, said.decode()


async def on_topic(stage: Scene, command: str, *words: object) -> tuple[int, str, str]:
    return await runfold(command, "--bootstrap", stage.settings.bootstrap, "--topic", stage.settings.topic, *words)


async def test_the_log_of_workers_that_were_killed_keeps_every_promise(stage: Scene) -> None:
    code, out, errors = await on_topic(stage, "verify-log", "--json")
    assert code == 0, out + errors
    said = json.loads(out)
    deliveries = [delivery for partition in stage.log for delivery in partition]
    assert (said["ok"], said["first"], said["records"]) == (True, None, len(deliveries))
    assert sum(partition["open"] for partition in said["partitions"]) == 1
    assert verify(deliveries) == []


async def test_an_export_is_checked_and_replayed_as_the_topic_is(stage: Scene, tmp_path: Path) -> None:
    code, out, errors = await on_topic(stage, "export", "--to", tmp_path / "all", "--json")
    assert code == 0, errors
    deliveries = [delivery for partition in stage.log for delivery in partition]
    assert json.loads(out)["records"] == len(deliveries)
    assert list(ExportedLog(tmp_path / "all").deliveries()) == deliveries
    code, out, errors = await runfold("verify-log", tmp_path / "all")
    assert (code, "every invariant holds" in out) == (0, True), out + errors
    run_id = next(iter(stage.finished))
    _, replayed, _ = await runfold("replay", run_id, "--file", tmp_path / "all", "--json")
    assert replayed == (await on_topic(stage, "replay", run_id, "--json"))[1]
    assert json.loads(replayed)["status"] == Status.SUCCEEDED


async def test_an_export_of_some_runs_holds_these_alone_and_can_be_checked(stage: Scene, tmp_path: Path) -> None:
    run_id = next(iter(stage.finished))
    assert (await on_topic(stage, "export", "--to", tmp_path / "one", "--run", run_id))[0] == 0
    assert run_ids(tmp_path / "one") == {run_id}
    assert (await on_topic(stage, "export", "--to", tmp_path / "closed", "--closed-only"))[0] == 0
    assert run_ids(tmp_path / "closed") == stage.finished
    code, out, errors = await runfold("verify-log", tmp_path / "one", "--json")
    assert code == 0, out + errors
    assert (await runfold("verify-log", tmp_path / "closed"))[0] == 0


def run_ids(export: Path) -> set[str]:
    events = [delivery.event for delivery in ExportedLog(export).deliveries() if isinstance(delivery, Record)]
    return {run_id for event in events if (run_id := getattr(event, "run_id", None))}


async def test_an_export_of_a_run_that_does_not_exist_leaves_nothing_behind(stage: Scene, tmp_path: Path) -> None:
    code, _, errors = await on_topic(stage, "export", "--to", tmp_path, "--run", str(uuid4()))
    assert (code, "knows no run" in errors) == (1, True)
    assert os.listdir(tmp_path) == []


async def test_without_a_broker_there_is_no_verdict() -> None:
    code, said = await process("verify-log", "--bootstrap", "127.0.0.1:1")
    assert (code, "runfold: no broker tells of topic" in said) == (2, True), said


async def test_a_record_that_an_owner_would_not_have_written_is_found(stage: Scene) -> None:
    """Last in this module: the topic is not what it was afterwards."""
    result = next(record for record in stage.records() if isinstance(record.event, ToolStepFinished))
    assert isinstance(result.event, ToolStepFinished)
    epoch = stage.epoch(result.partition)
    partition, offset = await stage.plant(replace(result.event, epoch=epoch, content_json='"else"'))
    assert await first(stage) == {"invariant": "one_end", "partition": partition, "offset": offset, "runId": result.event.run_id}
    address = "--bootstrap", stage.settings.bootstrap, "--topic", stage.settings.topic
    code, out = await process("verify-log", *address)
    assert (code, f"VIOLATION one_end at {partition}/{offset}, run {result.event.run_id}: " in out) == (1, True), out
    assert (await on_topic(stage, "verify-log", "--except", "one_end"))[0] == 0
    assert (await on_topic(stage, "verify-log", "--except", "no_such"))[0] == 2


async def first(stage: Scene) -> dict[str, Any]:
    _, out, errors = await on_topic(stage, "verify-log", "--json")
    found: dict[str, Any] = json.loads(out)["first"]
    assert found, out + errors
    return {name: value for name, value in found.items() if name != "detail"}


# ---- files alone


async def test_a_file_that_was_changed_after_the_export_gives_no_verdict(stage: Scene, tmp_path: Path) -> None:
    await on_topic(stage, "export", "--to", tmp_path)
    file = tmp_path / json.loads((tmp_path / MANIFEST).read_text())["files"][0]["file"]
    file.write_bytes(file.read_bytes().rpartition(b'{"partition')[0])
    code, _, errors = await runfold("verify-log", tmp_path)
    assert (code, "is not what its manifest says" in errors) == (2, True)
    code, _, errors = await on_topic(stage, "export", "--to", tmp_path)
    assert (code, "holds an export already" in errors) == (1, True)
