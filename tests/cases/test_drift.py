"""R8: a deploy that renders the log otherwise stops its open runs before the next request, not by a 400 of the API."""

from collections.abc import Callable
from typing import Any

import pytest

from runfold.core import conversation
from runfold.core.events import OwnerEvent, Reason, RunResumeRequested, Status, ToolStepFinished
from runfold.testing import Script
from tests.cases.engine_scene import recording, stage

BLANK_AND_CALL: list[dict[str, Any]] = [
    {"type": "text", "text": " "},
    {"type": "tool_use", "id": "a", "name": "act", "input": {}},
]
SCRIPT = Script().then_message(BLANK_AND_CALL, "tool_use").then_tool_use("b", "broken", {}).then_text("done")


def keeps_blanks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation, "_blank", lambda block: False)


def hurries_the_user(patch: pytest.MonkeyPatch) -> None:
    said = conversation.user_text
    patch.setattr(conversation, "user_text", lambda text: said(f"{text}!"))


def results_in(event: OwnerEvent) -> bool:
    return isinstance(event, ToolStepFinished) and event.tool_use_id == "b"


@pytest.mark.parametrize("deploy", [keeps_blanks, hurries_the_user, None])
async def test_a_deploy_that_renders_otherwise_sends_nothing(deploy: Callable[[pytest.MonkeyPatch], None] | None) -> None:
    async with stage(SCRIPT) as scene:

        def breaks(context: Any) -> str:
            raise ValueError("broken")

        scene.serve(recording(scene.ledger, "act"), recording(scene.ledger, "broken", breaks))
        killed = scene.kill_at(results_in, committed=True)
        scene.start()
        id_ = await scene.submit()
        await killed
        assert scene.api.hits() == 2
        with pytest.MonkeyPatch.context() as patch:
            conversation._cached_turn.cache_clear()
            if deploy is not None:
                deploy(patch)
                scene.start()
                run = await scene.settled(id_)
                assert (run.status, run.reason) == (Status.SUSPENDED, Reason.PREFIX_DRIFT)
                assert scene.api.hits() == 2, "nothing was sent"
                await scene.restart()
                await scene.quiet()
                assert scene.api.hits() == 2, "nor by the next worker"
                await scene.kill(scene.processes[0])
        conversation._cached_turn.cache_clear()
        scene.start()  # the version that began the run
        if deploy is not None:
            await scene.commands.send(RunResumeRequested(run_id=id_, command_id="r1", requested_by="test"))
        await scene.until(id_, lambda run: run.status.final)
        assert scene.notes.runs[id_].status is Status.SUCCEEDED
        assert scene.api.hits() == 3
