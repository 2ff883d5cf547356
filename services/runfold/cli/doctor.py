"""``runfold doctor``: what is there, what is missing, and how to get it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from runfold.cli.options import Bootstrap, Dsn, Json, settings
from runfold.cli.stack import who_answers
from runfold.config import Settings
from runfold.core.errors import RunfoldError
from runfold.local.checks import Check, checks
from runfold.local.jars import KafkaJars
from runfold.log.kafka import check_topic
from runfold.model import Prices
from runfold_projector.store import answering

out = Console(soft_wrap=True, highlight=False, markup=False)


def doctor(bootstrap: Bootstrap = None, dsn: Dsn = None, as_json: Json = False) -> None:
    """Say what works here and what is missing. Exit code 1 when something that is needed is."""
    chosen = settings(bootstrap=bootstrap, dsn=dsn)
    found = [
        *_given_or_local(chosen),
        _asked("model", lambda: who_answers(chosen), "see docs/model-providers.md"),
        _asked("prices", lambda: _prices(chosen), "mend or unset RUNFOLD_PRICES"),
    ]
    if as_json:
        print(json.dumps([asdict(check) for check in found]))
    else:
        for check in found:
            out.print(f"{'ok     ' if check.ok else 'MISSING'}  {check.name}: {check.detail}")
            if not check.ok:
                out.print(f"         {check.remedy}")
    raise typer.Exit(not all(check.ok for check in found))


def _given_or_local(chosen: Settings) -> list[Check]:
    """What was given is asked; what was not must be possible to start here."""
    local = {check.name: check for check in checks(KafkaJars(chosen.cache_dir, chosen.maven_mirror))}
    found: list[Check] = []
    if chosen.bootstrap:
        local.pop("Java", None), local.pop("Kafka", None)
        found.append(_asked("Kafka", lambda: f"topic {chosen.topic}, {check_topic(chosen)} partitions", "runfold topic create"))
    if chosen.dsn:
        local.pop("PostgreSQL", None)
        found.append(_asked("PostgreSQL", lambda: answering(chosen.dsn), "start it, or mend RUNFOLD_DSN"))
    return [*found, *local.values()]


def _asked(name: str, ask: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, ask())
    except RunfoldError as error:
        return Check(name, False, str(error), remedy)


def _prices(chosen: Settings) -> str:
    listed = Prices.load(Path(chosen.prices) if chosen.prices else None)
    return f"of {len(listed.models)} models, {chosen.prices or 'as shipped'}"
