"""R06: commands and events for a run that does not exist bring none into being."""

from uuid import uuid4

import pytest

from runfold.core.events import RunCancelRequested, RunResumeRequested, Status, ToolStatus, ToolStepFinished
from tests.cases.harness import Scene

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize(("method", "path"), [("POST", "/cancel"), ("POST", "/resume"), ("GET", "/timeline"), ("GET", "")])
async def test_an_unknown_run_is_not_found_and_nothing_is_produced(stage: Scene, method: str, path: str) -> None:
    """R06.1"""
    await stage.read()
    before = await stage.ends()
    answer = await stage.ask(method, f"/api/runs/{uuid4()}{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "run_not_found"
    assert await stage.ends() == before


async def test_records_of_an_unknown_run_are_counted_and_passed_over(stage: Scene) -> None:
    """R06.2, R06.3"""
    unknown = str(uuid4())
    partition = stage.partition_of(unknown)
    owner = stage.owner(partition)
    before = await stage.processes.metric(owner, 'runfold_ignored_records_total{why="orphan"}')
    await stage.produce(RunCancelRequested(run_id=unknown, command_id=str(uuid4()), requested_by="nobody"))
    await stage.produce(RunResumeRequested(run_id=unknown, command_id=str(uuid4()), requested_by="nobody"))
    await stage.plant(
        ToolStepFinished(
            run_id=unknown, epoch=stage.epoch(partition), seq=2, model_seq=1, tool_use_id="toolu_a", attempt=1,
            status=ToolStatus.DONE, content_json='"done"', latency_ms=1,
        )
    )  # fmt: skip
    good = await stage.post_to(partition, f"good {uuid4()}")
    await stage.ended(good)
    assert stage.run(good).status is Status.SUCCEEDED, "R06.2"
    assert stage.kinds(unknown) == ["RunCancelRequested", "RunResumeRequested", "ToolStepFinished"], "R06.2"
    assert await stage.processes.metric(owner, 'runfold_ignored_records_total{why="orphan"}') == before + 3, "R06.2"
    await stage.read()  # R06.2: the offsets advance
    await stage.check(good)
    assert (await stage.ask("GET", f"/api/runs/{unknown}")).status_code == 404, "R06.3"
    assert unknown not in await stage.rows(), "R06.3"
