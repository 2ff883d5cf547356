"""What must hold after every test, whatever it was about: ten oracles over what can be seen from outside.

    check(Evidence(records=log, hits=api.requests, executions=ledger, interruptions=1))

`Evidence` says what there is to see; what was not looked at is None, and the oracles that need it are silent. A complaint begins
with the oracle's name:

O1   at most one RunFinished per run, exactly one once it ended; no event of the run after it but CommandRejected
O2   every ToolStepFinished has an earlier ToolStepStarted of the same call, and at most one ToolStepFinished answers a call
O3   every request was well-formed, and no committed answer was asked for again
O4   fold(log) = fold(log) = live state = rows of the tables = timeline of the API
O5   tokens and cost of a run are the sums of its answers; what failed attempts wasted is kept apart
O6   no more requests than answers, failures and calls interrupted; no more attempts of a step than the policy has
O7   a tool call has one key; it runs once, and once more for each time its worker died over it
O8   no partition stands still
O9   each line that our processes write is one JSON object
O10  no HTTP 5xx, and no process ended, that the test did not cause
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from runfold.core.events import (
    CommandRejected,
    Delivery,
    LeaseAcquired,
    ModelStepCompleted,
    ModelStepFailed,
    ModelStepStarted,
    OwnerEvent,
    Reason,
    Record,
    RunFinished,
    ToolStatus,
    ToolStepFinished,
    ToolStepStarted,
    Usage,
)
from runfold.core.run import Run
from runfold.core.shard import Shard
from runfold.testing import Hit
from runfold.testing.fake_api.markers import unmarked

INTERRUPTED = (Reason.CANCEL, Reason.DEADLINE, Reason.NO_PROGRESS)  # of a run that ended while something was under way
ATTEMPTS = 3  # of a model step that fails, in the test profile
SERVER_ERROR = 500

Row = dict[str, Any]
E = TypeVar("E", bound=OwnerEvent)


@dataclass(frozen=True, slots=True)
class Execution:
    """One line of the side-effect ledger: a tool's body was entered."""

    key: str  # idempotency key
    input: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """``records``: what is committed, in offset order within each partition: whole partitions, or the records of some runs.

    ``planted`` are (partition, offset) of records that the test wrote in an owner's name: they are folded as the worker folds
    them, and nobody is blamed for them. ``interruptions`` counts kills, lost leases and other ends of a worker's hold that the
    test caused (each may cost a run one call), ``discarded`` are stop reasons whose answers may be asked for again.
    """

    records: Sequence[Delivery]
    planted: frozenset[tuple[int, int]] = frozenset()
    interruptions: int = 0
    attempts: int = ATTEMPTS
    discarded: frozenset[str] = frozenset({"max_tokens"})
    hits: Sequence[Hit] | None = None
    executions: Sequence[Execution] | None = None
    live: Mapping[str, Run] = field(default_factory=dict)  # by run id: what a worker holds in memory
    rows: Mapping[str, Row] | None = None  # of `run`, by id
    steps: Mapping[str, Sequence[Row]] | None = None  # of `run_step`, by run id, in order of seq
    timelines: Mapping[str, Sequence[Row]] | None = None  # as the API answers, by run id
    unread: Mapping[str, int] | None = None  # records behind a consumer's position at the end, by a name of both
    output: Mapping[str, Sequence[str]] | None = None  # lines, by process
    statuses: Sequence[tuple[str, int]] | None = None  # of HTTP exchanges: what was asked, status
    outage: bool = False  # whether the test took a dependency away
    ended: Sequence[str] | None = None  # processes that ended or were restarted without the test

    def written(self) -> Iterator[tuple[Record, OwnerEvent]]:
        """What the engine wrote, in order."""
        for record in self.records:
            if (record.partition, record.offset) in self.planted or not isinstance(record, Record):
                continue
            if isinstance(record.event, OwnerEvent):
                yield record, record.event

    def events(self, kind: type[E]) -> list[E]:
        return [event for _, event in self.written() if isinstance(event, kind)]


def check(seen: Evidence) -> None:
    """Raises AssertionError with everything that does not hold."""
    complaints = [f"{name}: {complaint}" for name, oracle in ORACLES.items() for complaint in oracle(seen)]
    assert not complaints, "\n" + "\n".join(complaints)


# ---- O1, O2: the log


def one_end(seen: Evidence) -> Iterator[str]:
    ended: dict[str, int] = {}
    for record, event in seen.written():
        if isinstance(event, LeaseAcquired | CommandRejected):
            continue
        if event.run_id in ended:
            yield f"run {event.run_id}: {_at(record)} follows the RunFinished at offset {ended[event.run_id]}"
        elif isinstance(event, RunFinished):
            ended[event.run_id] = record.offset
    for run in _fold(seen).values():
        if run.status.final != (run.id in ended) and not seen.planted:
            yield f"run {run.id} is {run.status} and has {'a' if run.id in ended else 'no'} RunFinished"


def answers_of_calls(seen: Evidence) -> Iterator[str]:
    started: set[tuple[str, int, str]] = set()
    finished: set[tuple[str, int, str]] = set()
    for record, event in seen.written():
        if isinstance(event, ToolStepStarted):
            started.add(_call(event))
        elif isinstance(event, ToolStepFinished):
            if (call := _call(event)) not in started:
                yield f"{_at(record)} of {call} without a ToolStepStarted before it"
            if call in finished:
                yield f"{_at(record)} answers {call} a second time"
            finished.add(call)


# ---- O3: the conversation


def conversation(seen: Evidence) -> Iterator[str]:
    hits = seen.hits or ()
    yield from (f"request {hit.number}: {hit.complaint}" for hit in hits if hit.complaint)
    kept = {event.request_id for event in seen.events(ModelStepCompleted) if event.stop_reason not in seen.discarded}
    answered: list[tuple[Any, int]] = []
    for hit in hits:
        messages = unmarked((hit.body or {}).get("messages"))
        yield from (f"request {hit.number} asks again for the committed answer to {n}" for old, n in answered if old == messages)
        if hit.request_id in kept:
            answered.append((messages, hit.number))


# ---- O4, O5: what is derived from the log


def one_state(seen: Evidence) -> Iterator[str]:
    runs = _fold(seen)
    if runs != _fold(seen):
        yield "two folds of the same log differ"
    for id_, live in seen.live.items():
        if runs.get(id_) != live:
            yield f"run {id_}: the worker holds {live}, the log folds to {runs.get(id_)}"
    yield from _runs_as_rows(seen, runs)
    yield from _steps_as_timelines(seen)


def _runs_as_rows(seen: Evidence, runs: Mapping[str, Run]) -> Iterator[str]:
    if seen.rows is None:
        return
    for id_ in runs.keys() ^ seen.rows.keys():
        yield f"run {id_} is {'in the log only' if id_ in runs else 'in the tables only'}"
    for id_ in runs.keys() & seen.rows.keys():
        yield from (f"run {id_}: {difference}" for difference in _differences(_row(runs[id_]), seen.rows[id_]))
    begun: defaultdict[str, set[int]] = defaultdict(set)
    for _, event in seen.written():
        if isinstance(event, ModelStepStarted | ToolStepStarted):
            begun[event.run_id].add(event.seq)
    for id_ in runs if seen.steps is not None else ():
        if begun[id_] != (found := {step["seq"] for step in (seen.steps or {}).get(id_, ())}):
            yield f"run {id_}: steps {sorted(begun[id_])} began, the table has {sorted(found)}"


def _row(run: Run) -> Row:
    """What the table must say, worked out without the projector's own code."""
    return {
        "status": run.status.value,
        "reason": run.reason and run.reason.value,
        "detail": run.detail,
        "waiting_tool_use_id": run.waiting_tool_use_id,
        "input": run.request.input,
        "output": run.output,
        "steps": run.steps,
        "input_tokens": run.usage.input_tokens,
        "output_tokens": run.usage.output_tokens,
        "total_tokens": run.usage.total,
        "wasted_tokens": run.wasted.total,
        "cost_usd": run.cost,
        "partition": run.partition,
        "first_offset": run.first_offset,
        "last_offset": run.last_offset,
    }


def _steps_as_timelines(seen: Evidence) -> Iterator[str]:
    for id_, timeline in (seen.timelines or {}).items():
        rows = (seen.steps or {}).get(id_, ())
        if len(rows) != len(timeline):
            yield f"run {id_}: the timeline has {len(timeline)} steps, the table {len(rows)}"
        for row, step in zip(rows, timeline, strict=False):
            wanted = {_camel(name): _json(value) for name, value in row.items() if _camel(name) in step}
            found = {name: _moment(value) for name, value in step.items()}
            yield from (f"run {id_}, step {row['seq']} of the timeline: {each}" for each in _differences(wanted, found))


def sums(seen: Evidence) -> Iterator[str]:
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    wasted: defaultdict[str, Usage] = defaultdict(Usage)
    cost: defaultdict[str, Decimal | None] = defaultdict(Decimal)
    for answer in seen.events(ModelStepCompleted):
        usage[answer.run_id] += answer.usage
        paid = cost[answer.run_id]
        cost[answer.run_id] = None if paid is None or answer.cost is None else paid + answer.cost
    for failure in seen.events(ModelStepFailed):
        wasted[failure.run_id] += failure.usage or Usage()
    for id_, run in _fold(seen).items() if not seen.planted else ():
        if (run.usage, run.wasted, run.cost) != (usage[id_], wasted[id_], cost[id_]):
            yield f"run {id_}: {run.usage}, wasted {run.wasted}, {run.cost} USD; sums {usage[id_]}, {wasted[id_]}, {cost[id_]}"
    for end in seen.events(RunFinished):
        if (end.usage, end.cost) != (usage[end.run_id], cost[end.run_id]):
            yield f"run {end.run_id}: RunFinished says {end.usage}, {end.cost} USD"
    yield from _sums_of_steps(seen)


def _sums_of_steps(seen: Evidence) -> Iterator[str]:
    if seen.rows is None or seen.steps is None:
        return
    for id_, row in seen.rows.items():
        steps = seen.steps.get(id_, ())
        for column in ("input_tokens", "output_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens", "cache_read_tokens"):
            if row[column] != (found := sum(step[column] or 0 for step in steps)):
                yield f"run {id_}: {column} is {row[column]}, its steps have {found}"
        if row["cost_usd"] not in (None, found := sum((step["cost_usd"] or 0 for step in steps), Decimal(0))):
            yield f"run {id_}: cost_usd is {row['cost_usd']}, its steps have {found}"


# ---- O6, O7: what was done in the world


def paid_once(seen: Evidence) -> Iterator[str]:
    starts, failures, open_ = _attempts(seen)
    for (id_, seq), count in failures.items():
        if count > seen.attempts:
            yield f"run {id_}, step {seq}: failed {count} times, the policy has {seen.attempts} attempts"
    allowed: Counter[str] = Counter()
    for id_, run in _fold(seen).items():
        lost = seen.interruptions + (run.reason in INTERRUPTED) + (not run.status.final)
        if open_[id_] > lost:
            yield f"run {id_}: {open_[id_]} calls have no outcome, {lost} were interrupted"
        allowed[run.request.input] += starts[id_] - max(0, open_[id_] - lost)
    for said, hits in Counter(hit.conversation for hit in seen.hits or () if not hit.complaint).items():
        if hits > allowed[said]:
            yield f"{hits} requests of {said[:40]!r}, {allowed[said]} are accounted for by answers, failures and interruptions"


def _attempts(seen: Evidence) -> tuple[Counter[str], Counter[tuple[str, int]], Counter[str]]:
    """Model calls begun, by run; those that failed, by run and step; those without an outcome, by run."""
    starts = Counter(event.run_id for event in seen.events(ModelStepStarted))
    failures = Counter((event.run_id, event.seq) for event in seen.events(ModelStepFailed))
    open_ = Counter(starts)
    open_.subtract(event.run_id for event in seen.events(ModelStepCompleted))
    open_.subtract(event.run_id for event in seen.events(ModelStepFailed))
    return starts, failures, open_


def effects(seen: Evidence) -> Iterator[str]:
    if seen.executions is None:
        return
    keys: defaultdict[tuple[str, int, str], set[str]] = defaultdict(set)
    starts: Counter[str] = Counter()
    for event in seen.events(ToolStepStarted):
        keys[_call(event)].add(event.idempotency_key)
        starts[event.idempotency_key] += 1
    yield from (f"call {call} has the keys {sorted(some)}" for call, some in keys.items() if len(some) != 1)
    if len(keys) != len(starts):
        yield f"{len(keys)} tool calls share {len(starts)} keys"
    times = Counter(execution.key for execution in seen.executions)
    for key, count in times.items():
        if count > starts[key]:
            yield f"{key} was executed {count} times and has {starts[key]} ToolStepStarted"
        if count > 1 + seen.interruptions:
            yield f"{key} was executed {count} times, {seen.interruptions} interruptions"
    yield from _undone(seen, times)


def _undone(seen: Evidence, times: Counter[str]) -> Iterator[str]:
    """A call of a tool that keeps the ledger is DONE only if it is in there."""
    calls = {_call(event): event for event in seen.events(ToolStepStarted)}
    keeping = {call.name for call in calls.values() if times[call.idempotency_key]}
    for end in seen.events(ToolStepFinished):
        call = calls.get(_call(end))
        if call and call.name in keeping and end.status is ToolStatus.DONE and not times[call.idempotency_key]:
            yield f"{call.idempotency_key} is DONE and was never executed"


# ---- O8, O9, O10: the processes


def nothing_stands_still(seen: Evidence) -> Iterator[str]:
    yield from (f"{who} is {records} records behind" for who, records in (seen.unread or {}).items() if records)


def one_object_per_line(seen: Evidence) -> Iterator[str]:
    for process, lines in (seen.output or {}).items():
        yield from (f"{process} wrote {line[:300]!r}" for line in lines if not _is_object(line))


def no_accident(seen: Evidence) -> Iterator[str]:
    if not seen.outage:
        yield from (f"{asked}: {status}" for asked, status in seen.statuses or () if status >= SERVER_ERROR)
    yield from seen.ended or ()


ORACLES = {
    "O1": one_end,
    "O2": answers_of_calls,
    "O3": conversation,
    "O4": one_state,
    "O5": sums,
    "O6": paid_once,
    "O7": effects,
    "O8": nothing_stands_still,
    "O9": one_object_per_line,
    "O10": no_accident,
}


# ---- words


def _fold(seen: Evidence) -> dict[str, Run]:
    """Every run as the log leaves it."""
    shards: dict[int, Shard] = {}
    runs: dict[str, Run] = {}
    for delivery in seen.records:
        shard = shards.setdefault(delivery.partition, Shard(delivery.partition))
        if isinstance(delivery, Record) and isinstance(run := shard.apply(delivery), Run):
            runs[run.id] = run
    return runs


def _call(event: ToolStepStarted | ToolStepFinished) -> tuple[str, int, str]:
    return event.run_id, event.model_seq, event.tool_use_id


def _at(record: Record) -> str:
    return f"{type(record.event).__name__} at {record.partition}/{record.offset}"


def _differences(wanted: Row, found: Mapping[str, Any]) -> Iterable[str]:
    return [
        f"{name} is {found.get(name)!r}, expected {value!r}"
        for name, value in wanted.items()
        if found.get(name) != value and str(found.get(name)) != str(value)
    ]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _moment(value: Any) -> Any:
    """A time, where a text is one."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) and "T" in value else value
    except ValueError:
        return value


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
