"""``runfold simulate``: look for a seed under which a promise does not hold, or watch one seed."""

import json
import time
from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from runfold.cli.options import Json
from runfold.simulation import Outcome, explore
from runfold.simulation import simulate as play


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="How many to play.")] = 2000,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[int | None, typer.Option(min=0, help="Play this one alone and print its trace.", show_default=False)] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per processor.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Play simulated deployments full of faults and check the invariants at each commit. Exit code 1 when one does not hold."""
    if seed is not None:
        outcome = play(seed, None if as_json else print)
        _tell(json.dumps(asdict(outcome)) if as_json else _verdict(outcome))
        raise typer.Exit(bool(outcome.complaints))
    raise typer.Exit(_search(range(first, first + seeds), jobs, as_json))


def _search(seeds: range, jobs: int | None, as_json: bool) -> int:
    began = time.monotonic()
    records: Counter[str] = Counter()
    failed: list[Outcome] = []
    calls = 0
    for outcome in explore(seeds, jobs):
        records.update(outcome.records)
        calls += outcome.calls
        if outcome.complaints:
            failed.append(outcome)
            if not as_json:
                _tell(_verdict(outcome))
    seconds = time.monotonic() - began
    facts = {
        "seeds": len(seeds),
        "first": seeds[0],
        "seconds": round(seconds, 1),
        "seedsPerSecond": round(len(seeds) / seconds, 1),
        "records": records.total(),
        "takeovers": records["LeaseAcquired"],
        "modelCalls": calls,
        "failed": {outcome.seed: outcome.complaints for outcome in failed},
    }
    _tell(json.dumps(facts) if as_json else _summary(facts, len(failed)))
    return 1 if failed else 0


def _verdict(outcome: Outcome) -> str:
    if not outcome.complaints:
        return f"seed {outcome.seed}: ok, {outcome.steps} callbacks, {outcome.seconds:.0f} s, digest {outcome.digest}"
    return "\n".join(f"seed {outcome.seed}: {complaint}" for complaint in outcome.complaints)


def _summary(facts: dict[str, object], failed: int) -> str:
    told = "{seeds} seeds from {first} in {seconds} s ({seedsPerSecond}/s): {takeovers} takeovers, {modelCalls} model calls"
    return f"{told.format(**facts)}, {failed} failed"


def _tell(line: str) -> None:
    print(line, flush=True)
