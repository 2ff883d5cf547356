"""`runfold demo`: what it promises to people who have never seen Runfold is kept; and it says so when it is not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from tests.cases.harness_processes import marked, slowness, wait_for_end

DEMO = [sys.executable, "-m", "runfold.cli", "demo"]
QUICK_SECONDS = 60.0  # what a demo may take, set-up aside
END_SECONDS = 40.0  # for what is under way to end
PATIENCE = 180.0

TWICE = """
create table demo_execution (key text not null, pid integer not null);
create table demo_escalation (key text primary key, ticket text not null);
create function again() returns trigger language plpgsql as $$
begin
    insert into demo_escalation (key, ticket) values (gen_random_uuid()::text, 'ACME-17');
    return new;
end $$;
create trigger again before insert on demo_execution for each row execute function again();
"""


def play(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RUNFOLD_")}
    return subprocess.run(
        [*DEMO, "--json"], env=own | {**environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip


def on(bootstrap: str, dsn: str) -> dict[str, str]:
    """Servers that are there already, and a log of one's own on them."""
    name = f"demo-{uuid4().hex[:8]}"
    return {"RUNFOLD_BOOTSTRAP": bootstrap, "RUNFOLD_DSN": dsn, "RUNFOLD_TOPIC": name, "RUNFOLD_GROUP": name}


def kept(document: dict[str, Any]) -> dict[str, bool]:
    """The promises: which were kept."""
    return {promise["promise"].partition(" (")[0]: promise["held"] for promise in document["promises"]}


def test_a_run_survives_kill_9_on_a_bare_machine(tmp_path: Path) -> None:
    """Its own Kafka, its own PostgreSQL, two workers: within a minute, and nothing is left of any of them."""
    began = time.monotonic()
    ended = play({"TMPDIR": str(tmp_path)})
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - began < QUICK_SECONDS * slowness()
    document = json.loads(ended.stdout)
    assert all(kept(document).values())
    assert len(kept(document)) == 6
    run, steps = document["run"], document["timeline"]
    assert (run["status"], run["totalTokens"]) == ("SUCCEEDED", 812 + 64 + 1210 + 140)
    assert [(step["seq"], step["kind"], step["status"]) for step in steps] == [
        (1, "MODEL", "DONE"),
        (2, "TOOL", "DONE"),
        (3, "MODEL", "DONE"),
    ]
    assert [step["attempt"] for step in steps] == [1, 2, 1]
    first, *others = (step["worker"] for step in steps)
    assert set(others) == {"worker-A", "worker-B"} - {first}
    assert marked(f"TMPDIR={tmp_path}") == []


def test_the_demo_says_which_promise_is_broken(bootstrap: str, dsn: str) -> None:
    """In this database an escalation happens again each time the tool runs."""
    with psycopg.connect(dsn) as database:
        database.execute(TWICE)
    ended = play(on(bootstrap, dsn))
    assert ended.returncode == 1, ended.stderr
    broken = [promise for promise, held in kept(json.loads(ended.stdout)).items() if not held]
    assert broken == ["its side effect happened exactly once"]


def test_nothing_is_left_of_a_demo_that_is_killed(bootstrap: str, dsn: str, tmp_path: Path) -> None:
    """kill -9 in the middle of its story."""
    environment = {**os.environ, **on(bootstrap, dsn), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any(" TOOL escalate " in line for line in demo.stdout)
        demo.send_signal(signal.SIGKILL)
    left = marked(f"RUNFOLD_TOPIC={environment['RUNFOLD_TOPIC']}")
    assert len(left) > 5, "API, projector, model, keepers and workers were running"
    assert all(wait_for_end(pid, END_SECONDS) for pid in left)
    assert marked(f"RUNFOLD_TOPIC={environment['RUNFOLD_TOPIC']}") == []
