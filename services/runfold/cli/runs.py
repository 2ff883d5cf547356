"""Commands about runs, through the HTTP API."""

import json
import time
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from runfold.cli.client import Client
from runfold.cli.options import DEFAULT_API, Api, Json

FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT")
POLL_SECONDS = 0.3
WIDE = 1000  # columns: an id that was cut to fit a terminal is of no use

out = Console(soft_wrap=True, highlight=False, width=WIDE)


def submit(
    text: Annotated[str, typer.Argument(help="What the agent is asked.")],
    agent: Annotated[str, typer.Option(help="Which agent.")] = "default",
    token_budget: Annotated[int | None, typer.Option(help="Tokens the run may spend.")] = None,
    cost_ceiling_usd: Annotated[str | None, typer.Option(help="US dollars the run may cost.")] = None,
    timeout_seconds: Annotated[int | None, typer.Option(help="From now to the deadline.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Model and tool steps together.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key again gives the same run.")] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Stay and watch it.")] = False,
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """Submit a run and print its id."""
    body: dict[str, Any] = {
        "input": text,
        "agent": agent,
        "tokenBudget": token_budget,
        "costCeilingUsd": _amount(cost_ceiling_usd),
        "timeoutSeconds": timeout_seconds,
        "maxSteps": max_steps,
    }
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
    run = Client(api).post("/api/runs", {name: value for name, value in body.items() if value is not None}, headers)
    print(json.dumps(run) if as_json else run["id"])
    if follow:
        watch(run["id"], api, as_json)


def _amount(given: str | None) -> float | None:
    try:
        return None if given is None else float(Decimal(given))
    except InvalidOperation:
        raise typer.BadParameter(f"expected US dollars such as 0.50, got {given!r}") from None


def list_runs(
    status: Annotated[str | None, typer.Option(help="Only those with this status.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only this agent's.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    page = Client(api).get("/api/runs", status=status, agent=agent, tenant=tenant, limit=limit)
    if as_json:
        print(json.dumps(page))
        return
    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, no_wrap=True)
    for run in page["runs"]:
        table.add_row(*(_cell(run.get(name)) for name in _COLUMNS.values()))
    out.print(table)


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


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def watch(
    run_id: Annotated[str, typer.Argument(help="Which run.")],
    api: Api = DEFAULT_API,
    as_json: Json = False,
) -> None:
    """Print a run's steps as they end, until the run does. Exit code 1 unless it SUCCEEDED."""
    client, seen = Client(api), dict[int, str]()
    while True:
        run = client.get(f"/api/runs/{run_id}")
        for step in client.get(f"/api/runs/{run_id}/timeline"):
            if seen.get(step["seq"]) != (state := f"{step['status']} {step['attempt']}"):
                seen[step["seq"]] = state
                print(json.dumps(step) if as_json else step_line(step), flush=True)
        if run["status"] in (*FINAL, "SUSPENDED"):
            print(json.dumps(run) if as_json else run_line(run), flush=True)
            raise typer.Exit(run["status"] != "SUCCEEDED")
        time.sleep(POLL_SECONDS)


def step_line(step: dict[str, Any]) -> str:
    stop = f" stop={step['stopReason']}" if step.get("stopReason") else ""
    what = f" {step['tool']} id={step['toolUseId']}" if step["kind"] == "TOOL" else stop
    again = f" attempt={step['attempt']}" if step["attempt"] > 1 else ""
    took = f" {step['latencyMs']}ms" if step.get("latencyMs") is not None else ""
    return f"seq={step['seq']} {step['kind']}{what} {step['status']}{took}{again}"


def run_line(run: dict[str, Any]) -> str:
    why = f" reason={run['reason']} {run.get('detail') or ''}".rstrip() if run["status"] != "SUCCEEDED" else ""
    return f"{run['status']} tokens={run.get('totalTokens')}{why}\n{run.get('output') or ''}".rstrip()


def cancel(run_id: Annotated[str, typer.Argument(help="Which run.")], api: Api = DEFAULT_API, as_json: Json = False) -> None:
    """Cancel a run."""
    answer = Client(api).post(f"/api/runs/{run_id}/cancel")
    print(json.dumps(answer) if as_json else f"{run_id} {answer.get('status', 'cancel requested')}")
