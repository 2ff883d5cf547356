"""T08: tools and prompts that a deploy changes while runs are open."""

import json

import pytest

from runfold.core.events import ModelStepCompleted, OwnerEvent, RunStarted, Status, ToolStatus, ToolStepFinished
from runfold.testing import Script
from runfold.tools import tool
from tests.cases.engine_scene import AnyTool, Scene, stage

SCRIPT = Script().then_tool_use("a", "search", {"query": "x"}).then_text("done")


@tool(side_effect="read", name="search")
def search(query: str) -> str:
    """Search."""
    return query.upper()


@tool(side_effect="read", name="search")
def search_of_a_tenant(query: str, tenant: str) -> str:
    """Search as a tenant."""
    return query + tenant


@tool(side_effect="read", name="other")
def other() -> str:
    """Something else."""
    return "else"


def asks_for_search(event: OwnerEvent) -> bool:
    return isinstance(event, ModelStepCompleted) and event.stop_reason == "tool_use"


async def deploy(scene: Scene, *tools: AnyTool, system: str) -> str:
    """A run whose call of search is committed when its worker is replaced by one of another version."""
    scene.serve(search, system="Be brief.")
    killed = scene.kill_at(asks_for_search, committed=True)
    scene.start()
    id_ = await scene.submit("go")
    await killed
    scene.serve(*tools, system=system)
    scene.start()
    return id_


GONE: dict[str, tuple[AnyTool, str]] = {
    "V1: it is gone": (other, "no tool 'search'"),
    "V2: it needs more": (search_of_a_tenant, "'tenant': required"),
}


@pytest.mark.parametrize("variant", GONE)
async def test_t08_1_a_call_that_cannot_be_made_any_more_is_an_error_for_the_model(variant: str) -> None:
    new, message = GONE[variant]
    async with stage(SCRIPT) as scene:
        id_ = await deploy(scene, new, system="Be brief.")
        run = await scene.settled(id_)
        (result,) = scene.log(id_, ToolStepFinished)
        assert (run.status, result.status) == (Status.SUCCEEDED, ToolStatus.ERROR), "T08.1"
        assert message in json.loads(result.content_json), "T08.1"
        assert not scene.accidents, "T08.1: no worker crashed"


async def test_t08_v3_a_run_keeps_the_definition_that_it_began_with() -> None:
    async with stage({"go": SCRIPT, "later": Script().then_text("done")}) as scene:
        id_ = await deploy(scene, search, other, system="Be verbose.")
        assert (await scene.settled(id_)).status is Status.SUCCEEDED
        first, second = scene.asked("go", 1), scene.asked("go", 2)
        (started,) = scene.log(id_, RunStarted)
        for request in (first, second):
            assert request["system"] == json.loads(started.definition.system_json), "T08.2"
            assert request["tools"] == json.loads(started.definition.tools_json), "T08.2"
        assert second["messages"][: len(first["messages"])] == first["messages"], "T08.2"

        assert (await scene.play("later")).status is Status.SUCCEEDED
        later = scene.asked("later", 1)
        assert later["system"] == [{"type": "text", "text": "Be verbose."}], "T08.3"
        assert [each["name"] for each in later["tools"]] == ["search", "other"], "T08.3"
