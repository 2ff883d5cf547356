"""Each oracle is silent about a good run, and speaks up when what it guards is broken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runfold.core.events import Reason, Record, RunFinished, Status, ToolStatus, ToolStepFinished, Usage
from runfold.testing import Hit, given
from runfold.testing.given import RUN_ID, History, text, tool_use
from tests.cases.oracles import Evidence, Execution, check

KEY = f"{RUN_ID}/1/t1"


def history() -> History:
    asked = given("go").started().started_model().answers(tool_use("t1"))
    return asked.finished_tool("t1", "none").started_model().answers(text("done")).finished()


def hit(number: int, messages: Any, **fields: Any) -> Hit:
    return Hit(number=number, at=0.0, conversation="go", body={"messages": messages}, status=200, **fields)


def good() -> Evidence:
    whole = history()
    return Evidence(
        records=whole.records,
        hits=[hit(1, ["go"]), hit(2, ["go", "t1", "none"])],
        executions=[Execution(KEY, "{}", 1)],
        live={RUN_ID: whole.run},
        unread={"worker 0": 0},
        output={"worker": ['{"message":"Traceback"}']},
        statuses=[("GET /api/runs", 404)],
        ended=[],
    )


def more(seen: Evidence, *events: Any) -> list[Record]:
    """Further records, in the epoch of those before."""
    records = [record for record in seen.records if isinstance(record, Record)]
    return [*records, *(Record(event, 0, records[-1].offset + n, records[-1].timestamp) for n, event in enumerate(events, 1))]


def again() -> ToolStepFinished:
    return ToolStepFinished(
        run_id=RUN_ID, epoch=0, seq=2, model_seq=1, tool_use_id="t1", attempt=1, status=ToolStatus.DONE, content_json='"x"',
        latency_ms=1,
    )  # fmt: skip


def finish(usage: Usage) -> RunFinished:
    return RunFinished(
        run_id=RUN_ID, epoch=0, status=Status.FAILED, reason=Reason.REFUSAL, detail="", output="", command_id=None, steps=3,
        usage=usage, cost=None,
    )  # fmt: skip


BROKEN: dict[str, Callable[[Evidence], Evidence]] = {
    "O1: run": lambda seen: replace(seen, records=more(seen, finish(Usage()))),
    "O2: ToolStepFinished": lambda seen: replace(seen, records=more(seen, again())),
    "O3: request 2: roles": lambda seen: replace(seen, hits=[hit(1, ["go"]), hit(2, [], complaint="roles must alternate")]),
    "O3: request 2 asks again": lambda seen: replace(seen, hits=[hit(1, ["go"]), hit(2, ["go"])]),
    "O4: run": lambda seen: replace(seen, live={RUN_ID: replace(seen.live[RUN_ID], output="else")}),
    "O4: run 6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e10 is in the log only": lambda seen: replace(seen, rows={}),
    "O5: run": lambda seen: replace(seen, records=more(replace(seen, records=seen.records[:-1]), finish(Usage(input_tokens=1)))),
    "O6: 3 requests": lambda seen: replace(seen, hits=[*(seen.hits or ()), hit(3, ["else"])]),
    "O7: 6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e10/1/t1 was executed 2": lambda seen: replace(
        seen, executions=[Execution(KEY, "{}", 1), Execution(KEY, "{}", 2)]
    ),
    "O7: other": lambda seen: replace(seen, executions=[Execution("other", "{}", 1)]),
    "O8: worker 0": lambda seen: replace(seen, unread={"worker 0": 3}),
    "O9: worker": lambda seen: replace(seen, output={"worker": ["Traceback (most recent call last):"]}),
    "O10: GET": lambda seen: replace(seen, statuses=[("GET /api/runs", 500)]),
    "O10: worker-1": lambda seen: replace(seen, ended=["worker-1 ended with exit code 1"]),
}


def test_a_good_run_passes() -> None:
    check(good())


@pytest.mark.parametrize("complaint", BROKEN)
def test_each_oracle_bites(complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(BROKEN[complaint](good()))


def test_a_call_without_outcome_must_have_been_interrupted() -> None:
    """O6, O7: what died with a worker may be done again, once for each worker that died."""
    begun = given("go").started().started_model()
    twice = begun.taken_over().started_model()
    hits = [hit(1, ["go"]), hit(2, ["go"])]
    check(Evidence(records=twice.records, hits=hits, interruptions=1))
    with pytest.raises(AssertionError, match=r"O6: run .* 2 calls have no outcome, 1 were interrupted"):
        check(Evidence(records=twice.records, hits=hits))
