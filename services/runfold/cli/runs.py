"""Commands about runs, through the HTTP API."""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from math import isfinite
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runfold.cli.client import Client
from runfold.cli.live import Paper, reader
from runfold.cli.options import DEFAULT_API, Api, Bootstrap, Json, Topic, settings
from runfold.core.events import FINAL, OnBudget, Reason, Status
from runfold.core.printable import printable
from runfold.ports import LiveReader

POLL_SECONDS = 0.3
WIDE = 1000  # columns: an id that was cut to fit a terminal is of no use


def _not_blank(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise typer.BadParameter(f"expected some text, got {text!r}")
    return text


def _status(word: str | None) -> str | None:
    if word is not None and word.upper() not in list(Status):
        raise typer.BadParameter(f"expected one of {', '.join(Status).lower()}, got {word!r}")
    return word and word.upper()


RunId = Annotated[str, typer.Argument(help="Which run.")]
Detail = Annotated[str | None, typer.Option(help="Why, for people.")]

out = Console(soft_wrap=True, highlight=False, markup=False, width=WIDE)


def submit(
    text: Annotated[str, typer.Argument(help="What the agent is asked.", callback=_not_blank)],
    agent: Annotated[str, typer.Option(help="Which agent.", callback=_not_blank)] = "default",
    model: Annotated[str | None, typer.Option(help="Instead of the agent's own.", callback=_not_blank)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most output tokens of one answer.")] = None,
    token_budget: Annotated[int | None, typer.Option(min=1, help="Tokens the run may spend.")] = None,
    cost_ceiling_usd: Annotated[str | None, typer.Option(help="US dollars the run may cost.")] = None,
    on_budget: Annotated[OnBudget, typer.Option(help="What happens at either limit.", case_sensitive=False)] = OnBudget.SUSPEND,
    timeout_seconds: Annotated[int | None, typer.Option(min=1, help="From now to the deadline.")] = None,
    progress_timeout_seconds: Annotated[int | None, typer.Option(min=1, help="Longest time without a finished step.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Model and tool steps together.")] = None,
    tenant: Annotated[str | None, typer.Option(help="On whose behalf.", callback=_not_blank)] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label; may be repeated.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key again gives the same run.")] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Stay and watch it.")] = False,
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """Submit a run and print its id."""
    body: dict[str, Any] = {
        "input": text,
        "agent": agent,
        "model": model,
        "maxTokens": max_tokens,
        "tokenBudget": token_budget,
        "costCeilingUsd": _amount(cost_ceiling_usd),
        "onBudget": None if on_budget is OnBudget.SUSPEND else on_budget,
        "timeoutSeconds": timeout_seconds,
        "progressTimeoutSeconds": progress_timeout_seconds,
        "maxSteps": max_steps,
        "tenant": tenant,
        "metadata": _labels(metadata or []) or None,
    }
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
    run = Client(api).post("/api/runs", {name: value for name, value in body.items() if value is not None}, headers)
    print(json.dumps(run) if as_json else run["id"])
    if follow:
        watch(run["id"], api, as_json=as_json)


def _amount(given: str | None) -> float | None:
    if given is None:
        return None
    with suppress(InvalidOperation, ValueError):  # the latter of a NaN that signals
        if isfinite(amount := float(Decimal(given))):
            return amount
    raise typer.BadParameter(f"expected US dollars such as 0.50, got {given!r}", param_hint="--cost-ceiling-usd")


def _labels(given: Iterable[str]) -> dict[str, str]:
    pairs = {text: text.partition("=") for text in given}
    for text, (key, equals, _) in pairs.items():
        if not (key and equals):
            raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--metadata")
    return {key: value for key, _, value in pairs.values()}


def list_runs(
    status: Annotated[str | None, typer.Option(help="Only those with this status.", callback=_status)] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.", callback=_not_blank)] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", callback=_not_blank)] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    page = Client(api).get("/api/runs", status=status, agent=agent, tenant=tenant, limit=limit)
    if as_json:
        print(json.dumps(page))
        return
    print_table(_COLUMNS, [{**run, "costUsd": _usd(run["costUsd"])} for run in page["runs"]])


_COLUMNS = {
    "ID": "id",
    "AGENT": "agent",
    "STATUS": "status",
    "REASON": "reason",
    "STEPS": "steps",
    "TOKENS": "totalTokens",
    "USD": "costUsd",
    "REQUESTED": "requestedAt",
}


def _usd(amount: float | None) -> str | None:
    """To a millionth, upwards: what cost something is never shown as nothing. ``--json`` has all digits."""
    return None if amount is None else f"{Decimal(str(amount)).quantize(Decimal('0.000001'), ROUND_CEILING)}"


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """``columns``: the row's key by title."""
    table = Table(box=None, pad_edge=False)
    for title in columns:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns.values()))
    out.print(table)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def watch(
    run_id: RunId,
    api: Api = DEFAULT_API,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    as_json: Json = False,
) -> None:
    """Print a run's steps as they end, until the run does or is SUSPENDED. Exit code 1 unless it SUCCEEDED.

    Where Kafka is named (RUNFOLD_BOOTSTRAP), also what the model says, while it says it."""
    chosen, client = settings(bootstrap=bootstrap, topic=topic), Client(api)
    asked_at = datetime.fromisoformat(client.get(f"/api/runs/{run_id}")["requestedAt"])
    live = reader(chosen, run_id, round(asked_at.timestamp() * 1000))
    try:
        succeeded = _follow(client, run_id, live, as_json)
    finally:
        if live is not None:
            live.close()
    raise typer.Exit(not succeeded)


def _follow(client: Client, run_id: str, live: LiveReader | None, as_json: bool) -> bool:
    """Whether it SUCCEEDED."""
    paper, seen = Paper(as_json), dict[int, str]()
    while True:
        run = client.get(f"/api/runs/{run_id}")
        steps = client.get(f"/api/runs/{run_id}/timeline")
        _listen(live, paper, 0)  # what was said before a step ended belongs before its line
        for step in steps:
            if seen.get(step["seq"]) != (state := f"{step['status']} {step['attempt']}"):
                seen[step["seq"]] = state
                paper.step(step, json.dumps(step) if as_json else step_line(step))
        if run["status"] in FINAL or _waits_for_a_person(run):
            paper.line(json.dumps(run) if as_json else run_line(run))
            return bool(run["status"] == "SUCCEEDED")
        _listen(live, paper, POLL_SECONDS)


def _listen(live: LiveReader | None, paper: Paper, seconds: float) -> None:
    """For so long, print what is said."""
    if live is None:
        time.sleep(seconds)
        return
    until = time.monotonic() + seconds
    while True:
        for piece in live.read(max(0.0, until - time.monotonic())):
            paper.tell(piece)
        if time.monotonic() >= until:
            return


def step_line(step: dict[str, Any]) -> str:
    stop = f" stop={step['stopReason']}" if step.get("stopReason") else ""
    what = f" {step['tool']} id={step['toolUseId']}" if step["kind"] == "TOOL" else stop
    again = f" attempt={step['attempt']}" if step["attempt"] > 1 else ""
    took = f" {step['latencyMs']}ms" if step.get("latencyMs") is not None else ""
    return f"seq={step['seq']} {step['kind']}{what} {step['status']}{took}{again}"


def run_line(run: dict[str, Any]) -> str:
    why = f" reason={run['reason']} {run.get('detail') or ''}".rstrip() if run["status"] != "SUCCEEDED" else ""
    after = _way_on(run) if _waits_for_a_person(run) else run.get("output") or ""
    return f"{run['status']} tokens={run.get('totalTokens')}{why}\n{after}".rstrip()


def _waits_for_a_person(run: dict[str, Any]) -> bool:
    """Else it goes on by itself: with a newer version that is being deployed, where it waits for one."""
    return bool(run["status"] == Status.SUSPENDED and run.get("reason") != Reason.NEEDS_NEWER_VERSION)


def _way_on(run: dict[str, Any]) -> str:
    """The command that resumes a suspended run; at a limit, with the option that raises it."""
    match run.get("reason"):
        case Reason.HISTORY_LOST:
            return ""  # nothing does
        case Reason.BUDGET:
            limits = " --token-budget N or --cost-ceiling-usd USD"
        case Reason.STEP_CAP:
            limits = " --max-steps N"
        case _:
            limits = ""
    return f"to go on: runfold resume {run['id']}{limits}"


def cancel(run_id: RunId, detail: Detail = None, api: Api = DEFAULT_API, as_json: Json = False) -> None:
    """Cancel a run."""
    command(api, run_id, "cancel", {"detail": detail}, as_json)


def resume(
    run_id: RunId,
    token_budget: Annotated[int | None, typer.Option(min=1, help="Its new limit, what it has spent included.")] = None,
    cost_ceiling_usd: Annotated[str | None, typer.Option(help="The same, in US dollars.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="The same, in steps.")] = None,
    detail: Detail = None,
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """Let a suspended run go on. Limits that are not given stay as they are."""
    limits = {"tokenBudget": token_budget, "costCeilingUsd": _amount(cost_ceiling_usd), "maxSteps": max_steps}
    command(api, run_id, "resume", {**limits, "detail": detail}, as_json)


def command(api: str, run_id: str, action: str, body: dict[str, Any], as_json: bool) -> None:
    """Ask for something to be done with a run, and say what it was when asked."""
    given = {name: value for name, value in body.items() if value is not None}
    answer = Client(api).post(f"/api/runs/{run_id}/{action}", given)
    done = action == "cancel" and answer["status"] == Status.CANCELLED
    said = f"already {answer['status']}" if done else f"{answer['status']}, {action} requested"
    print(json.dumps(answer) if as_json else f"{run_id} {said}")
