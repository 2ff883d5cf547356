"""Runs that a person has to decide on: those that are suspended. Through the HTTP API; every decision is a command in the log."""

import json
from collections.abc import Iterator
from typing import Any

import typer

from runfold.cli.client import Client
from runfold.cli.options import DEFAULT_API, Api, Json
from runfold.cli.runs import Detail, RunId, command, print_table, resume
from runfold.core.errors import RunfoldError

PAGE = 200

quarantine = typer.Typer(help="Runs that a person has to decide on.", no_args_is_help=True)
quarantine.command()(resume)


@quarantine.command("list")
def list_suspended(api: Api = DEFAULT_API, as_json: Json = False) -> None:
    """List all suspended runs: why, since when, and which tool call they are about.

    NEEDS_NEWER_VERSION waits for a deploy, not for you."""
    runs = list(_suspended(Client(api)))
    if as_json:
        print(json.dumps([{name: run[name] for name in ("id", *_COLUMNS.values())} for run in runs]))
    else:
        print_table(_COLUMNS, runs)


_COLUMNS = {
    "ID": "id",
    "REASON": "reason",
    "SINCE": "lastProgressAt",
    "TOOL USE": "waitingToolUseId",
    "AGENT": "agent",
    "DETAIL": "detail",
}


def _suspended(client: Client) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = client.get("/api/runs", status="SUSPENDED", limit=PAGE, cursor=cursor)
        yield from page["runs"]
        if (cursor := page["nextCursor"]) is None:
            return


@quarantine.command()
def skip(run_id: RunId, detail: Detail = None, api: Api = DEFAULT_API, as_json: Json = False) -> None:
    """Let a run go on without its record that nobody can read (UNREADABLE_RECORD)."""
    _expect(Client(api), run_id, "UNREADABLE_RECORD")
    command(api, run_id, "resume", {"detail": detail}, as_json)


@quarantine.command()
def fail(run_id: RunId, detail: Detail = None, api: Api = DEFAULT_API, as_json: Json = False) -> None:
    """Give a suspended run up: it ends CANCELLED, with your detail."""
    _expect(Client(api), run_id)
    command(api, run_id, "cancel", {"detail": detail}, as_json)


def _expect(client: Client, run_id: str, reason: str | None = None) -> None:
    """A decision is about what somebody has seen: any other run is left alone."""
    run = client.get(f"/api/runs/{run_id}")
    if run["status"] != "SUSPENDED" or reason not in (None, run["reason"]):
        wanted = "suspended" if reason is None else f"suspended for {reason}"
        found = f"{run['status']} {run['reason'] or ''}".rstrip()
        raise RunfoldError(f"expected a run that is {wanted}, {run_id} is {found}: see `runfold quarantine list`")
