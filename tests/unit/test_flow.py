"""What a worker holds of one run: what the log says, what is planned beyond it, what is being done (`runfold.worker.flow`)."""

import asyncio
from dataclasses import replace

from runfold.core.events import (
    ModelStepStarted,
    Reason,
    Record,
    RunCancelRequested,
    RunEvent,
    RunSuspended,
    Status,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
)
from runfold.core.run import Run
from runfold.testing import History, given
from runfold.testing.given import tool_use
from runfold.worker.flow import Flow, Step
from runfold.worker.slots import Slots


def history() -> History:
    """A turn that asked for the tools a and b, and neither is started."""
    return given().started().answers(tool_use("a"), tool_use("b"))


def events_of(longer: History, shorter: History) -> list[Record]:
    return list(longer.records[len(shorter.records) :])


def read(flow: Flow, after: History, before: History, own: bool = True) -> None:
    """The records by which ``after`` is longer are read back; the last leaves the run as ``after`` has it."""
    (record,) = events_of(after, before)
    flow.read(record, after.run, own)


def start_of(history: History, tool_use_id: str) -> ToolStepStarted:
    event = history.started_tool(tool_use_id).records[-1].event
    assert isinstance(event, ToolStepStarted)
    return event


def planned(flow: Flow, event: RunEvent, slots: Slots | None = None) -> Flow:
    flow.plan(event, 0, slots)
    return flow


async def running() -> None:
    await asyncio.Event().wait()


def step_of(flow: Flow) -> Step:
    (step,) = flow.hand.values()
    return step


# ---- run and ahead


def test_the_run_is_what_was_read_and_ahead_is_what_was_planned() -> None:
    before = history()
    flow = planned(Flow(before.run), start_of(before, "a"))
    assert flow.run is before.run
    assert [call.open for call in flow.ahead.calls] == [True, False]
    read(flow, before.started_tool("a"), before)
    assert flow.ahead is flow.run, "nothing is planned any more"
    assert [call.open for call in flow.run.calls] == [True, False]


def test_ahead_stays_ahead_until_the_last_planned_event_is_read() -> None:
    before = history()
    flow = planned(planned(Flow(before.run), start_of(before, "a")), start_of(before, "b"))
    first = before.started_tool("a")
    read(flow, first, before)
    assert [call.open for call in flow.run.calls] == [True, False]
    assert [call.open for call in flow.ahead.calls] == [True, True]
    read(flow, first.started_tool("b"), first)
    assert flow.ahead is flow.run


def test_a_command_that_comes_between_is_in_both() -> None:
    before = history()
    flow = planned(Flow(before.run), start_of(before, "a"))
    read(flow, before.cancel_requested(), before, own=False)
    assert flow.run.inbox == flow.ahead.inbox != ()
    assert flow.ahead.calls[0].open
    assert not flow.run.calls[0].open


# ---- steps


def test_a_step_may_run_once_its_start_is_read_back() -> None:
    before = history()
    flow = planned(Flow(before.run), start_of(before, "a"))
    assert (flow.startable(), flow.working) == ([], False)
    read(flow, before.started_tool("a"), before)
    assert flow.startable() == [step_of(flow)]
    assert flow.working


def test_the_same_attempt_of_another_owner_is_not_ours() -> None:
    before = history()
    flow = planned(Flow(before.run), start_of(before, "a"))
    theirs = replace(before, epoch=99).started_tool("a")
    read(flow, theirs, before, own=False)
    assert flow.startable() == [], "they are running it"
    flow.begin_again(theirs.run)
    assert flow.hand == {}


async def test_a_result_takes_its_step_out_of_hand_and_returns_the_slot_once() -> None:
    before, slots = history().started_tool("a"), Slots(1)
    assert slots.take("run", lambda: None)
    flow = planned(Flow(history().run), start_of(history(), "a"), slots)
    read(flow, before, history())
    step, after = step_of(flow), before.finished_tool("a")
    end = after.records[-1].event
    assert isinstance(end, ToolStepFinished)
    step.ended(end)
    assert flow.working, "the log has to be told"
    assert flow.startable() == []
    flow.plan(end, 0, None)
    read(flow, after, before)
    assert (flow.hand, flow.working) == ({}, False)
    assert [slots.take("next", lambda: None) for _ in range(2)] == [True, False], "returned, and only once"


async def test_a_suspension_over_a_call_takes_its_step_out_of_hand() -> None:
    before = history().started_tool("a").started_tool("b")
    flow = planned(planned(Flow(history().run), start_of(history(), "a")), start_of(history(), "b"))
    event = RunSuspended(run_id=before.run.id, epoch=0, reason=Reason.OUTCOME_UNKNOWN, detail="", tool_use_id="a")
    after = before.when(event)
    read(flow, after, before)
    assert [step.start.seq for step in flow.hand.values()] == [before.run.calls[1].seq]


# ---- taking over again


async def test_a_takeover_keeps_what_runs_and_what_has_ended_and_drops_what_the_log_does_not_know() -> None:
    slots = Slots(3)
    before = history()
    flow = Flow(before.run)
    for id_ in "ab":
        assert slots.take("run", lambda: None)
        planned(flow, start_of(before, id_), slots)
    after = before.started_tool("a")
    read(flow, after, before)  # b was planned and is lost with the transaction
    kept = flow.startable()[0]
    kept.task = asyncio.create_task(running())
    ends = flow.begin_again(after.run)[0]
    assert (ends, list(flow.hand.values())) == ([], [kept])
    assert (flow.ahead, flow.unread) == (after.run, 0)
    await asyncio.sleep(0)
    assert not kept.task.cancelled()
    assert [slots.take("next", lambda: None) for _ in range(3)] == [True, True, False], "b's slot is free again"

    end = after.finished_tool("a", "paid for", ToolStatus.DONE).records[-1].event
    assert isinstance(end, ToolStepFinished)
    kept.task.cancel()
    kept.ended(end)
    assert flow.begin_again(after.run)[0] == [end], "it must still be told"
    assert flow.begin_again(after.finished_tool("a").run)[0] == [], "it was told: the uncertain append had been committed"


async def test_what_has_ended_survives_the_end_of_the_steps() -> None:
    """The run is planned to end; should that transaction fail, the results in hand are still worth their money."""
    before = history().started_tool("a").started_tool("b")
    flow = planned(planned(Flow(history().run), start_of(history(), "a")), start_of(history(), "b"))
    for step in flow.hand.values():
        step.committed = True
    ended, aborted = flow.hand.values()
    aborted.task = task = asyncio.create_task(running())
    end = before.finished_tool("a").records[-1].event
    assert isinstance(end, ToolStepFinished)
    ended.ended(end)
    flow.stop_steps()
    await asyncio.wait([task])
    assert task.cancelled()
    assert list(flow.hand.values()) == [ended]
    assert flow.begin_again(before.run)[0] == [end]


async def test_a_step_that_is_dropped_before_it_begins_tells_whom_it_would_have_told() -> None:
    told = list[str]()
    for begun in (False, True):
        flow = Flow(history().run)
        flow.plan(start_of(history(), "a"), 0, None, lambda: told.append("forgone"))
        if begun:
            step_of(flow).task = asyncio.create_task(running())
        flow.drop()
        flow.drop()
        assert told == ["forgone"], "what had begun says so itself"


async def test_drop_forgets_everything() -> None:
    slots = Slots(1)
    assert slots.take("run", lambda: None)
    flow = planned(Flow(history().run), start_of(history(), "a"), slots)
    step = step_of(flow)
    step.committed, step.task = True, asyncio.create_task(running())
    task = step.task
    flow.timer = asyncio.get_running_loop().call_later(600, lambda: None)
    timer = flow.timer
    flow.drop()
    flow.drop()
    await asyncio.wait([task])
    assert task.cancelled()
    assert timer.cancelled()
    assert not flow.hand
    assert [slots.take("next", lambda: None) for _ in range(2)] == [True, False], "returned, and only once"


def test_a_model_step_is_a_step_too() -> None:
    before = given().started()
    after = before.started_model()
    event = after.records[-1].event
    assert isinstance(event, ModelStepStarted)
    flow = planned(Flow(before.run), event)
    read(flow, after, before)
    assert flow.startable() == [step_of(flow)]
    failed = after.failed_model(Reason.OVERLOADED, retry_in=1000)
    read(flow, failed, after)
    assert flow.hand == {}


def test_an_event_that_the_run_ignores_leaves_ahead_as_it_was() -> None:
    ended: Run = history().finished(Status.CANCELLED, Reason.CANCEL).run
    flow = Flow(ended)
    cancel = RunCancelRequested(run_id=ended.id, command_id="c", requested_by="alice")
    flow.read(Record(cancel, 0, 99, 0), ended, own=False)
    assert flow.ahead is ended
