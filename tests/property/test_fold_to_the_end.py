"""Whatever the model says, a run comes to its end, to the same one whoever runs it and however often they die."""

import json
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from runfold.core.decide import MAX_STARTS
from runfold.core.events import ModelStepCompleted, Reason, Record, RunCancelRequested, RunRequested, Status, Usage
from runfold.core.run import Run, fold
from runfold.core.shard import Shard
from runfold.log.codec import Codec
from runfold.testing.given import RUN_ID, History, given, text, tool_use

from .answers import SAID
from .pure_worker import Answer, PureWorker, outcome

CODEC = Codec()
TOKENS = st.integers(0, 400)
USAGES = st.builds(Usage, input_tokens=TOKENS, output_tokens=TOKENS, cache_read_tokens=TOKENS)
COSTS = st.none() | st.decimals(0, 1, places=6)
ODD_ANSWERS = st.builds(lambda said, *rest: Answer(*said, *rest), SAID, USAGES, COSTS, st.integers(0, 2))
PLAIN = st.sampled_from(
    [
        ([tool_use("t1")], "tool_use"),
        ([text("I look"), tool_use("t2"), tool_use("t3"), tool_use("t1")], "tool_use"),
        ([text(""), tool_use("t1", input_=["no object"])], "tool_use"),
        ([text("wait")], "pause_turn"),
        ([text("half")], "max_tokens"),
        ([text("42")], "end_turn"),
        ([], "end_turn"),
    ]
)


def plain(said: tuple[list[dict[str, Any]], str], usage: Usage, cost: Decimal | None, failures: int) -> Answer:
    return Answer(json.dumps(said[0]), said[1], usage, cost, failures)


PLAIN_ANSWERS = st.builds(plain, PLAIN, USAGES, COSTS, st.integers(0, 2))
SCRIPTS = st.lists(PLAIN_ANSWERS, max_size=8) | st.lists(PLAIN_ANSWERS | ODD_ANSWERS, max_size=8)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "token_budget": st.integers(-1, 5_000),
        "cost_ceiling": st.decimals(-1, 3, places=3),
        "max_steps": st.integers(-1, 20),
        "timeout_ms": st.integers(-1, 10**6),
        "progress_timeout_ms": st.integers(-1, 10**5),
    },
)
UNTIMED = LIMITS.map(lambda limits: {name: limit for name, limit in limits.items() if not name.endswith("_ms")})
SEEDS = st.integers(0, 2**32)
DEATHS = st.sets(st.integers(2, 60), max_size=MAX_STARTS - 2)  # so few that no step is taken for the killer


@settings(max_examples=300, deadline=None)
@for_all(
    script=SCRIPTS,
    limits=LIMITS,
    seed=SEEDS,
    dies_at=st.sets(st.integers(2, 60), max_size=8),
    unrepeatable=st.sets(st.sampled_from(["t1", "t2"])),
)
def test_every_run_comes_to_an_end(
    script: list[Answer], limits: dict[str, Any], seed: int, dies_at: set[int], unrepeatable: set[str]
) -> None:
    history = PureWorker(given(**limits), script, Random(seed), dies_at, unrepeatable).finish()
    assert history.run.status.final
    assert fold(history.records) == history.run
    shard = Shard(0)
    assert [run for record in history.records if isinstance(run := shard.apply(record), Run)][-1] == history.run


@settings(max_examples=150, deadline=None)
@for_all(script=st.lists(ODD_ANSWERS, min_size=1, max_size=4), seed=SEEDS, unrepeatable=st.sets(st.sampled_from(["t1", "t2"])))
def test_whatever_a_model_says_what_follows_can_be_written(script: list[Answer], seed: int, unrepeatable: set[str]) -> None:
    """An event that has no bytes would stop its whole partition."""
    history = PureWorker(given(), script, Random(seed), {7}, unrepeatable).finish()
    follows = [record.event for record in history.records if not isinstance(record.event, ModelStepCompleted)]
    assert [CODEC.decode(CODEC.encode(event)) for event in follows] == follows


@settings(max_examples=200, deadline=None)
@for_all(script=SCRIPTS, limits=UNTIMED, seeds=st.tuples(SEEDS, SEEDS), dies_at=DEATHS)
def test_a_run_ends_alike_whoever_dies_on_the_way_and_whichever_step_ends_first(
    script: list[Answer], limits: dict[str, Any], seeds: tuple[int, int], dies_at: set[int]
) -> None:
    """Without a limit on money: calls that died count against it."""
    limits = {name: limit for name, limit in limits.items() if name not in ("token_budget", "cost_ceiling")}
    calm = PureWorker(given(**limits), script, Random(seeds[0])).finish()
    stormy = PureWorker(given(**limits), script, Random(seeds[1]), dies_at).finish()
    assert outcome(stormy.run) == outcome(calm.run)


@settings(max_examples=100, deadline=None)
@for_all(script=SCRIPTS, seed=SEEDS)
def test_a_worker_that_dies_of_every_start_is_stopped(script: list[Answer], seed: int) -> None:
    """R07: however it goes on, no step is started more often than it may be."""
    worker = PureWorker(given(), script, Random(seed), dies_at=range(4, 10_000))
    history = worker.finish()
    starts = [record.event for record in history.records if type(record.event).__name__.endswith("StepStarted")]
    assert len(starts) == MAX_STARTS
    assert history.run.status is Status.TIMED_OUT
    assert Reason.CRASH_LOOP in {getattr(record.event, "reason", None) for record in history.records}


# ---- commands


def with_commands(history: History, at: list[int]) -> list[Record]:
    """The same log with a command at each of these places, all behind the request and before the end."""
    records = list(history.records)
    for n, place in enumerate(at):
        command = (
            RunRequested(run_id=RUN_ID, agent="other", input="B")
            if n % 2
            else RunCancelRequested(run_id=RUN_ID, command_id=f"c{place}", requested_by="alice")
        )
        index = 2 + place % (len(records) - 2)
        records.insert(index, Record(command, 0, -1, records[index - 1].timestamp))
    return [replace(record, offset=offset) for offset, record in enumerate(records)]


@settings(max_examples=200, deadline=None)
@for_all(script=SCRIPTS, seed=SEEDS, at=st.lists(st.integers(0, 1_000), min_size=1, max_size=5))
def test_the_conversation_does_not_depend_on_where_commands_stand(script: list[Answer], seed: int, at: list[int]) -> None:
    history = PureWorker(given(), script, Random(seed)).finish()
    run = fold(with_commands(history, at))
    assert run is not None
    assert run.inbox
    assert outcome(run) == outcome(history.run)
    assert replace(run, inbox=(), last_offset=0) == replace(history.run, inbox=(), last_offset=0)


@settings(max_examples=100, deadline=None)
@for_all(script=SCRIPTS, seed=SEEDS, rounds=st.integers(0, 30))
def test_a_cancel_ends_the_run_at_once_wherever_it_is(script: list[Answer], seed: int, rounds: int) -> None:
    worker = PureWorker(given(), script, Random(seed))
    for _ in range(rounds):
        if not worker.run.status.final:
            worker.act()
    if worker.run.status.final:
        return
    worker.history = worker.history.cancel_requested("c1")
    worker.act()
    assert (worker.run.status, worker.run.reason) == (Status.CANCELLED, Reason.CANCEL)
    assert worker.run.inbox == ()
