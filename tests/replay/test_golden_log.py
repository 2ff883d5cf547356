"""The logs that releases wrote fold to the same runs for ever."""

import json
from pathlib import Path
from typing import get_args

import pytest

from runfold.core.events import Event, Reason, RunFinished, RunSuspended, Status
from tests.replay.golden_log import LOGS, fold_all, read_log

GOLDEN = sorted(LOGS.glob("*.jsonl"))


@pytest.mark.parametrize("log", GOLDEN, ids=lambda log: log.stem)
def test_a_released_log_folds_to_what_it_always_did(log: Path) -> None:
    runs = json.loads(log.with_suffix(".runs.json").read_text())
    assert fold_all(read_log(log.read_text())) == runs


def test_the_newest_log_holds_every_record_type_and_the_ways_to_end() -> None:
    records = read_log(GOLDEN[-1].read_text())
    assert {type(record.event) for record in records} == set(get_args(Event))
    runs = fold_all(records).values()
    assert {run["status"] for run in runs} >= {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.SUSPENDED}
    reasons = {record.event.reason for record in records if isinstance(record.event, RunSuspended | RunFinished)}
    assert reasons >= {Reason.OVERLOADED, Reason.MAX_TOKENS, Reason.REFUSAL, Reason.BUDGET, Reason.STEP_CAP}
