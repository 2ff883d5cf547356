"""K09: null values and repeated RunRequested."""

from dataclasses import replace
from uuid import uuid4

import pytest

from runfold.core.events import Limits, Reason, RunRequested, Status
from tests.cases.harness import Scene

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize("whose", ["of an open run", "of no run"])
async def test_a_null_value_is_counted_and_changes_nothing(stage: Scene, whose: str) -> None:
    """K09.1"""
    stage.world.hold("effect a")
    run_id = await stage.post(f"K09 {uuid4()}")
    await stage.held("effect a")
    partition = stage.partition_of(run_id)
    owner = stage.owner(partition)
    before = await stage.processes.metric(owner, 'runfold_unreadable_records_total{problem="NULL_VALUE"}')
    key = run_id if whose == "of an open run" else stage.id_on(partition)
    await stage.put(partition, key.encode(), None)
    stage.world.release("effect a")
    await stage.ended(run_id)
    assert stage.run(run_id).status is Status.SUCCEEDED
    await stage.read()
    assert await stage.processes.metric(owner, 'runfold_unreadable_records_total{problem="NULL_VALUE"}') == before + 1
    await stage.check(run_id)
    assert (await stage.ask("GET", f"/api/runs/{key}")).status_code == (200 if key == run_id else 404)


@pytest.mark.parametrize("when", ["before the start", "in mid-run", "after the end"])
async def test_only_the_first_request_of_a_run_counts(stage: Scene, when: str) -> None:
    """K09.2"""
    first = RunRequested(run_id=str(uuid4()), agent="default", input=f"K09 A {uuid4()}", limits=Limits(token_budget=1000))
    second = replace(first, input="K09 B", agent="another", limits=Limits(token_budget=1, max_steps=1))
    place = {"before the start": "before RunStarted", "in mid-run": "effect a"}.get(when)
    if place:
        stage.world.hold(place)
    await stage.produce(first)
    if place:
        await stage.held(place)
        await stage.produce(second)
        stage.world.release(place)
        await stage.ended(first.run_id)
    else:
        await stage.ended(first.run_id)
        await stage.produce(second)
    await stage.read()
    run = stage.run(first.run_id)
    assert run.request == first, "K09.2: limits unchanged"
    assert (run.status, run.reason, run.output) == (Status.SUCCEEDED, Reason.FINAL_ANSWER, "done")
    assert stage.kinds(first.run_id).count("RunRequested") == 2
    assert stage.kinds(first.run_id).count("RunFinished") == 1
    assert stage.hits(first.run_id) == 2, "A is in every request"
    assert stage.model.hits("K09 B") == 0
    await stage.check(first.run_id)
