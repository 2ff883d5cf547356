"""Whatever stands in the log, in whatever order: the fold takes it, an ignored record changes nothing, `decide` has an answer."""

from dataclasses import replace
from decimal import Decimal
from typing import Any, get_args, get_type_hints

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from runfold.core.decide import decide
from runfold.core.events import (
    AgentDefinition,
    Command,
    CommandRejected,
    Event,
    Limits,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    Record,
    RunRequested,
    RunStarted,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.core.run import Run, evolve, fold
from runfold.core.shard import Shard
from runfold.testing.given import RUN_ID, given, text

from .answers import CONTENTS, NAMES, RESULTS, STOP_REASONS, TEXTS

# ---- any record: each field by its name, or by its type, or as hypothesis would have it (enums)

LONGS = st.integers(-(2**63), 2**63 - 1)
MONEY = st.decimals(-(10**12), 10**12, places=12)
STEPS = st.integers(0, 8)
ATTEMPTS = st.integers(0, 3)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "run_id": st.just(RUN_ID),
    "command_id": st.sampled_from(["c1", "c2"]),
    "epoch": st.integers(-1, 5),
    "seq": STEPS,
    "model_seq": STEPS,
    "attempt": ATTEMPTS,
    "max_tokens": st.just(4_096) | LONGS,
    "stop_reason": STOP_REASONS,
    "tool_use_id": NAMES,
}
CONTENT = {ModelStepCompleted: CONTENTS, ToolStepFinished: RESULTS}
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {str: TEXTS | NAMES, int: st.integers(0, 1_000) | LONGS, Decimal: MONEY}


def made(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    fields = {name: BY_NAME[name] if name in BY_NAME else valued(hint) for name, hint in hints.items()}
    return st.builds(cls, **fields | ({"content_json": CONTENT[cls]} if cls in CONTENT else {}))


def valued(hint: Any) -> st.SearchStrategy[Any]:
    if options := get_args(hint):
        return st.one_of(*map(valued, options)) if type(None) in options else st.from_type(hint)
    if hint in (Usage, Limits, AgentDefinition):
        return made(hint)
    return BY_TYPE[hint] if hint in BY_TYPE else st.from_type(hint)


EVENTS: dict[type[Any], st.SearchStrategy[Any]] = {cls: made(cls) for cls in get_args(Event)}
ANYTHING = st.one_of(*EVENTS.values())


def fitting(run: Run | None) -> st.SearchStrategy[Any]:
    """Events that take the run further: else a random log would never get beyond its beginning."""
    if run is None:
        return EVENTS[RunRequested]
    if run.started is None:
        return EVENTS[RunStarted]
    if run.calls:
        return st.sampled_from(run.calls).flatmap(
            lambda call: st.one_of(
                at(ToolStepStarted, seq=call.seq, model_seq=call.model_seq, tool_use_id=call.id, attempt=call.attempt + 1),
                at(ToolStepFinished, seq=call.seq, model_seq=call.model_seq, tool_use_id=call.id, attempt=call.attempt),
            )
        )
    step = run.step
    if not step.open:
        place = {"seq": step.seq, "attempt": step.attempt + 1}
        return st.one_of(at(ModelStepStarted, **place, prefix_digest=run.digest), at(ModelStepStarted, **place))
    return st.one_of([at(cls, seq=step.seq, attempt=step.attempt) for cls in (ModelStepCompleted, ModelStepFailed)])


def at(cls: type[Any], **place: Any) -> st.SearchStrategy[Any]:
    return EVENTS[cls].map(lambda event: replace(event, **place))


# ---- what holds after any record


def check(before: Run | None, run: Run | None, record: Record) -> None:
    if run is before:
        return
    assert run is not None
    assert run.last_offset == record.offset
    asked = before is not None and isinstance(record.event, Command | CommandRejected)  # what others ask for is no progress
    assert run.last_at == (before.last_at if before is not None and asked else record.timestamp)
    assert before is None or not before.status.final, "nothing changes a run that has ended"
    assert before is None or run.messages[: len(before.messages)] == before.messages, "the conversation only grows"
    for message in run.messages:
        message.content_json.encode()
    for call in run.calls:
        f"{call.id}{call.name}{call.input_json}".encode()


def check_decisions(run: Run, busy: set[tuple[int, int]], now: int, since: int) -> None:
    assert bool(decide(run, now, busy, since)) is not run.status.final


@settings(max_examples=150, deadline=None)
@for_all(data=st.data(), length=st.integers(1, 25), busy=st.sets(st.tuples(STEPS, ATTEMPTS), max_size=3))
def test_any_log_folds_and_any_run_has_a_next_decision(data: st.DataObject, length: int, busy: set[tuple[int, int]]) -> None:
    records: list[Record] = []
    runs: list[Run | None] = [None]
    for offset in range(length):
        event = data.draw(ANYTHING if data.draw(st.integers(0, 4)) == 0 else fitting(runs[-1]))
        record = Record(event, 0, offset, data.draw(st.integers(0, 2**42)))
        run = evolve(runs[-1], record)
        check(runs[-1], run, record)
        if run is not None:
            for now in (0, record.timestamp, 2**63):
                check_decisions(run, busy, now, since=now)
        records.append(record)
        runs.append(run)
    for prefix, run in enumerate(runs):
        assert fold(records[:prefix]) == run, "folding again gives the same"


@settings(max_examples=100, deadline=None)
@for_all(events=st.lists(ANYTHING, max_size=20))
def test_any_partition_folds(events: list[Event]) -> None:
    shard = Shard(0)
    for offset, event in enumerate(events):
        shard.apply(Record(event, 0, offset, offset))
        assert 0 <= shard.low <= shard.next_offset == offset + 1
        assert all(not run.status.final for run in shard.runs.values())


@settings(max_examples=100, deadline=None)
@for_all(costs=st.lists(st.decimals(0, 10**9, places=12), min_size=1, max_size=30))
def test_b06_3_costs_add_up_exactly(costs: list[Decimal]) -> None:
    history = given(max_steps=100).started()
    for cost in costs:
        history = history.answers(text("…"), stop_reason="pause_turn", cost=cost)
    assert history.run.cost == sum(int(cost.scaleb(12)) for cost in costs) * Decimal(10) ** -12
