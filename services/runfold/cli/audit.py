"""Commands that take a log as evidence: check it, and carry it off as files."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from runfold.audit import Auditor, Violation
from runfold.audit.files import Export, ExportedLog, ExportError
from runfold.audit.findings import name_of
from runfold.audit.partition import PartitionAudit, all_checks, readable
from runfold.cli.options import Bootstrap, Json, Topic, need_bootstrap, refuse_beside_a_file, settings
from runfold.cli.wiring.topic import codec
from runfold.config import Settings
from runfold.core.errors import ConfigError, LogUnavailable, RunfoldError
from runfold.core.events import Delivery, LeaseAcquired, Record, RunFinished
from runfold.log.kafka.source import KafkaSource
from runfold.log.partitioner import partition_of

SILENCE_SECONDS = 30.0  # without a record before the end: the broker is away
POLL_SECONDS = 0.5
UNREADABLE_EXIT = 2  # there is no verdict: the log could not be read

Batches = Iterator[Sequence[Delivery]]


def verify_log(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Exported logs, directories or files, instead of the topic.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many the topic has, for a file without a manifest.", show_default=False)
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--except", help="An invariant not to report.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that the log keeps what Runfold promises, from its beginning to its end as of now.

    Exit code 0: it does. 1: a record breaks an invariant; the first is printed. 2: the log could not be read, nothing is known.
    """
    began = time.monotonic()
    try:
        _check_names(leave_out or [])
        if partitions and not files:
            raise ConfigError("--partitions goes with a file: the topic says itself how many it has; leave it out")
        if files:
            refuse_beside_a_file(bootstrap=bootstrap, topic=topic)
        logs = [ExportedLog(file, partitions) for file in files or []]
        auditor = _audit_files(logs, leave_out or []) if logs else _audit_topic(_chosen(bootstrap, topic), leave_out or [])
    except RunfoldError as error:
        _no_verdict(error)
    seconds = time.monotonic() - began
    print(json.dumps(_document(auditor, seconds))) if as_json else _print(auditor, seconds)
    raise typer.Exit(bool(auditor.violations))


def _no_verdict(error: RunfoldError) -> NoReturn:
    print(f"runfold: {error}", file=sys.stderr)
    raise typer.Exit(UNREADABLE_EXIT)


def _check_names(names: Sequence[str]) -> None:
    known = [name_of(check) for check in all_checks()]
    if unknown := set(names) - set(known):
        raise ConfigError(f"no invariant is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")


def _chosen(bootstrap: str | None, topic: str | None) -> Settings:
    return need_bootstrap(settings(bootstrap=bootstrap, topic=topic))


def _audit_topic(chosen: Settings, leave_out: Sequence[str]) -> Auditor:
    with closing(_source(chosen)) as source:
        batches, starts = _from_beginning(source)
        auditor = Auditor(starts, leave_out)
        for batch in batches:
            auditor.take(batch)
    return auditor


def _audit_files(logs: Sequence[ExportedLog], leave_out: Sequence[str]) -> Auditor:
    auditor = Auditor({partition: start for log in logs for partition, start in log.starts.items()}, leave_out)
    for log in logs:
        auditor.take(_at_least_one_record(log))
    return auditor


def _at_least_one_record(log: ExportedLog) -> Iterator[Delivery]:
    """All records of a file. None at all prove nothing: it may have been cut, or be of another run."""
    deliveries = log.deliveries()
    if (first := next(deliveries, None)) is None:
        raise ExportError(f"{log.path} holds no record: there is nothing to check")
    yield first
    yield from deliveries


# ---- the topic, from its beginning to its end as of now


def _source(chosen: Settings) -> KafkaSource:
    return KafkaSource(chosen, codec(chosen))


def _from_beginning(source: KafkaSource) -> tuple[Batches, Mapping[int, int]]:
    """All records, and where each partition begins."""
    source.assign(dict.fromkeys(range(source.partitions), 0))
    starts, ends = dict(source.reached()), dict(source.ends())
    return _batches(source, ends), starts


def _batches(source: KafkaSource, ends: Mapping[int, int]) -> Batches:
    heard = time.monotonic()
    while any(source.reached()[partition] < end for partition, end in ends.items()):
        if batch := source.poll(POLL_SECONDS):
            yield batch
            heard = time.monotonic()  # whoever takes the batch may be slow
        elif time.monotonic() - heard > SILENCE_SECONDS:
            raise LogUnavailable(f"no record came for {SILENCE_SECONDS:.0f} s and the end of the log is not reached")


# ---- what is said


def _print(auditor: Auditor, seconds: float) -> None:
    for partition in auditor.partitions.values():
        print(_line(partition, auditor.counts.get(partition.partition, 0)))
    records, violations = _total(auditor)
    if auditor.violations:
        first = _first(auditor)
        print(f"VIOLATION {first}")
        if first.invariant == name_of(readable):
            print(f"  to judge the rest alone: --except {first.invariant}")
    verdict = f"{violations} violations" if violations else "every invariant holds"
    print(f"{records} records in {seconds:.1f} s ({_rate(records, seconds)}/s): {verdict}")


def _first(auditor: Auditor) -> Violation:
    """Of the lowest partition, so that two audits of one log say the same."""
    return min(auditor.violations, key=lambda violation: (violation.partition, violation.offset))


def _line(partition: PartitionAudit, violations: int) -> str:
    notes = [f"log begins at {partition.start}: older runs are not judged"] if partition.start else []
    if partition.unread:
        notes.append(f"{partition.unread} unreadable")
    if partition.backwards:
        notes.append(f"warning: {partition.backwards} timestamps more than a minute before an earlier one")
    said = f"{partition.records} records, {partition.runs} runs, {len(partition.open)} open, {violations} violations"
    return f"partition {partition.partition}: {'; '.join([said, *notes])}"


def _document(auditor: Auditor, seconds: float) -> dict[str, Any]:
    records, violations = _total(auditor)
    return {
        "ok": not violations,
        "records": records,
        "violations": violations,
        "first": _violation(_first(auditor)) if auditor.violations else None,
        "found": [_violation(violation) for violation in auditor.violations[:100]],
        "partitions": [_partition(each, auditor.counts.get(each.partition, 0)) for each in auditor.partitions.values()],
        "seconds": round(seconds, 3),
        "recordsPerSecond": _rate(records, seconds),
    }


def _violation(violation: Violation) -> dict[str, Any]:
    return {
        "invariant": violation.invariant,
        "partition": violation.partition,
        "offset": violation.offset,
        "runId": violation.run_id,
        "detail": violation.detail,
    }


def _partition(partition: PartitionAudit, violations: int) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "start": partition.start,
        "records": partition.records,
        "runs": partition.runs,
        "open": len(partition.open),
        "unreadable": partition.unread,
        "backwardTimestamps": partition.backwards,
        "violations": violations,
    }


def _total(auditor: Auditor) -> tuple[int, int]:
    return sum(partition.records for partition in auditor.partitions.values()), sum(auditor.counts.values())


def _rate(records: int, seconds: float) -> int:
    return round(records / max(seconds, 0.001))


# ---- export


def export(
    to: Annotated[Path, typer.Option(help="A directory; one file per partition and a manifest are written to it.")],
    run: Annotated[list[str] | None, typer.Option(help="Only this run; may be repeated.", show_default=False)] = None,
    closed_only: Annotated[bool, typer.Option("--closed-only", help="Only runs that have ended.")] = False,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """Write the runs of the topic to files, which `verify-log` and `replay --file` read.

    The leases of their partitions come with them, so that an export of some runs can be checked as a whole log can.
    """
    chosen = _chosen(bootstrap, topic)
    with closing(_source(chosen)) as source:
        wanted = None if run is None else frozenset(run)
        if closed_only:
            wanted = _ended(source, wanted)
        belongs = _belongs(wanted, source.partitions)
        batches, starts = _from_beginning(source)
        with Export(to, chosen.topic, starts) as out:
            for batch in batches:
                for delivery in filter(belongs, batch):
                    out.write(delivery)
            if missing := (wanted or frozenset()) - out.runs:
                raise ExportError(f"the log {chosen.topic!r} knows no run {', '.join(sorted(missing))}; nothing was exported")
            manifest = out.finish()
    records, runs = (sum(getattr(part, name) for part in manifest.files) for name in ("records", "runs"))
    said = {"to": str(to), "partitions": len(manifest.files), "runs": runs, "records": records}
    print(json.dumps(said) if as_json else f"{to}: {runs} runs, {records} records, {len(manifest.files)} files")


def _ended(source: KafkaSource, wanted: frozenset[str] | None) -> frozenset[str]:
    """The runs that have ended, of the wanted ones."""
    batches, _ = _from_beginning(source)
    events = (delivery.event for batch in batches for delivery in batch if isinstance(delivery, Record))
    ended = frozenset(event.run_id for event in events if isinstance(event, RunFinished))
    return ended if wanted is None else ended & wanted


def _belongs(wanted: frozenset[str] | None, partitions: int) -> Callable[[Delivery], bool]:
    """Whether a record is of a wanted run, or a lease of such a run's partition. None wants everything."""
    if wanted is None:
        return lambda delivery: True
    places = {partition_of(run_id.encode(), partitions) for run_id in wanted}
    keys = {run_id.encode() for run_id in wanted}

    def belongs(delivery: Delivery) -> bool:
        if not isinstance(delivery, Record):
            return delivery.key in keys
        event = delivery.event
        return delivery.partition in places if isinstance(event, LeaseAcquired) else event.run_id in wanted

    return belongs
