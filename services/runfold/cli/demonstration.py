"""The story of the demo: a run's worker is killed with kill -9 in the middle of a tool, and another one finishes the run.

Every promise is checked against what really happened: the model's own ledger, the tool's rows, the run as the API shows it.
"""

import json
import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from runfold.cli.client import Client
from runfold.cli.credentials import scripted
from runfold.cli.deployment import Deployment, wait_for
from runfold.cli.runs import WIDE
from runfold.cli.tailing import Follower
from runfold.core.events import FINAL
from runfold.local import demo_app
from runfold.testing import Script

APP = "runfold.local.demo_app:agent"
QUESTION = "Which acme tickets are overdue? Escalate them."
SCRIPT = (
    Script()
    .then_tool_use("toolu_01Ab", "escalate", {"ticket": "ACME-17"}, 812, 64)
    .then_text("ACME-17 was overdue. I have escalated it.", 1210, 140)
)
TOKENS = ("inputTokens", "outputTokens", "cacheWrite5mTokens", "cacheWrite1hTokens", "cacheReadTokens")
QUICK = {  # the lease of a lost machine lasts 2 s, not 6
    "RUNFOLD_SESSION_TIMEOUT_MS": "2000",
    "RUNFOLD_HEARTBEAT_MS": "200",
    "RUNFOLD_LOG_FORMAT": "console",
}

out = Console(highlight=False, markup=False, soft_wrap=True, width=WIDE)


@dataclass(frozen=True, slots=True)
class Ending:
    """What there is to see afterwards."""

    run: dict[str, Any]
    timeline: list[dict[str, Any]]
    model_requests: int
    executions: int
    effects: int
    killed: str
    finished_by: str | None


def play(deployment: Deployment, as_json: bool) -> bool:
    """Tell the story; whether every promise held."""
    def say(line: str) -> None:
        if not as_json:
            out.print(line)

    def show(line: str) -> None:
        if " run=" in line:  # a step; the rest is for the log
            say(line)

    demo_app.prepare(deployment.settings.dsn)
    model = deployment.start_scripted_model(SCRIPT)
    deployment.start_projector()
    client = Client(deployment.start_api(0))
    with ExitStack() as followed:
        for name in ("worker-A", "worker-B"):
            deployment.start_worker(name, APP, {**QUICK, **scripted(model)})
            followed.enter_context(Follower(deployment.log_of(name), show))
        run_id = client.post("/api/runs", {"input": QUESTION, "tokenBudget": 50_000, "timeoutSeconds": 300})["id"]
        say(f"POST /api/runs -> 202 {run_id}")
        killed = _kill_the_owner(deployment, client, run_id)
        say(f"{killed} killed with kill -9")
        wait_for("the run to end", lambda: client.get(f"/api/runs/{run_id}")["status"] in FINAL)
    ending = _ending(deployment, client, run_id, model, killed)
    _report(ending) if not as_json else print(json.dumps(_document(ending)))
    return all(held for _, held in _promises(ending))


def _kill_the_owner(deployment: Deployment, client: Client, run_id: str) -> str:
    """kill -9 of the worker process in the middle of its tool, and of its keeper: the loss of a whole machine."""
    ((_, pid),) = wait_for("the tool to run", lambda: demo_app.executions(deployment.settings.dsn))
    step = wait_for("the tool step in the timeline", lambda: _tool_step(client, run_id))
    os.kill(pid, signal.SIGKILL)
    deployment.kill(step["worker"])
    return str(step["worker"])


def _tool_step(client: Client, run_id: str) -> dict[str, Any] | None:
    steps = client.get(f"/api/runs/{run_id}/timeline")
    return next((step for step in steps if step["kind"] == "TOOL"), None)


def _ending(deployment: Deployment, client: Client, run_id: str, model: str, killed: str) -> Ending:
    timeline = client.get(f"/api/runs/{run_id}/timeline")
    return Ending(
        run=client.get(f"/api/runs/{run_id}"),
        timeline=timeline,
        model_requests=len(httpx.get(f"{model}/__ledger").json()),
        executions=len(demo_app.executions(deployment.settings.dsn)),
        effects=len(demo_app.effects(deployment.settings.dsn)),
        killed=killed,
        finished_by=timeline[-1]["worker"] if timeline else None,
    )


def _promises(ending: Ending) -> list[tuple[str, bool]]:
    steps = [(step["seq"], step["kind"], step["status"]) for step in ending.timeline]
    return [
        ("the run ended SUCCEEDED", ending.run["status"] == "SUCCEEDED"),
        ("the other worker finished it", ending.finished_by not in (None, ending.killed)),
        ("the timeline has every step once", steps == [(1, "MODEL", "DONE"), (2, "TOOL", "DONE"), (3, "MODEL", "DONE")]),
        (f"the model was called exactly twice (it says {ending.model_requests})", ending.model_requests == 2),
        (f"the tool ran again under the same key (it ran {ending.executions} times)", ending.executions == 2),
        (f"its side effect happened exactly once (there are {ending.effects})", ending.effects == 1),
    ]


def _report(ending: Ending) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("SEQ", "KIND", "WHAT", "STATUS", "ATTEMPT", "WORKER", "LATENCY MS", "TOKENS"):
        table.add_column(title, no_wrap=True)
    for step in ending.timeline:
        what = step["tool"] if step["kind"] == "TOOL" else f"stop={step['stopReason']}"
        row = (step["seq"], step["kind"], what, step["status"], step["attempt"], step["worker"], step["latencyMs"])
        table.add_row(*map(str, row), str(sum(step[name] or 0 for name in TOKENS) or ""))
    out.print(table)
    for promise, held in _promises(ending):
        out.print(f"{'ok  ' if held else 'FAIL'}  {promise}")


def _document(ending: Ending) -> dict[str, Any]:
    return {
        "run": ending.run,
        "timeline": ending.timeline,
        "promises": [{"promise": promise, "held": held} for promise, held in _promises(ending)],
    }
