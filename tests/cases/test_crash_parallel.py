"""C02: a crash while four parallel calls are open. Nobody is answered twice, and nobody by a filler."""

from uuid import uuid4

import pytest

from runfold.core.events import Status
from tests.cases.harness import Scene

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def crash(stage: Scene) -> tuple[str, int]:
    """A run with a finished, b's effect done, c begun and not entered, d not begun (two calls at a time); whom to kill."""
    stage.world.hold("effect b", "call tool c")
    run_id = await stage.post(f"C02 {uuid4()}")
    await stage.held("effect b")
    visit = await stage.held("call tool c")
    await stage.until("a to be answered, c to be started", lambda: stage.kinds(run_id).count("ToolStepStarted") == 3)
    assert stage.answered(run_id) == ["toolu_a"]
    assert sorted(stage.executions(run_id)) == ["1/toolu_a", "1/toolu_b"]
    return run_id, visit.pid


async def judge(stage: Scene, run_id: str) -> None:
    run = stage.run(run_id)
    assert sorted(stage.answered(run_id)) == ["toolu_a", "toolu_b", "toolu_c", "toolu_d"], "C02.1"
    assert sorted(stage.executions(run_id)) == ["1/toolu_a", "1/toolu_b", "1/toolu_b", "1/toolu_c", "1/toolu_d"], "C02.2"
    last = [hit.body["messages"] for hit in stage.model.requests if hit.conversation == run.request.input][-1]
    results = [(block["tool_use_id"], block["content"], block.get("is_error", False)) for block in last[2]["content"]]
    assert results == [(f"toolu_{name}", f"{name} is done", False) for name in "abcd"], "C02.3"
    assert run.status is Status.SUCCEEDED, "C02.3"
    assert stage.hits(run_id) == 2
    await stage.check(run_id, interruptions=1)


async def test_the_next_worker_finishes_what_was_open(stage: Scene) -> None:
    """C02.1 to C02.3, with the keeper's next worker."""
    run_id, pid = await crash(stage)
    stage.processes.kill_worker(pid)
    await stage.ended(run_id)
    await judge(stage, run_id)


async def test_another_machine_finishes_what_was_open(pair: Scene) -> None:
    """C02.1 to C02.3, with a second worker that takes over."""
    run_id, pid = await crash(pair)
    lost = pair.owner(pair.partition_of(run_id))
    pair.processes.kill_both(lost, pid)
    await pair.ended(run_id)
    assert pair.owner(pair.partition_of(run_id)) != lost
    await judge(pair, run_id)
