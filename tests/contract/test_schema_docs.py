"""docs/contract.md is true: its tables are the schemas', its bytes are a release's, its example starts a run."""

import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from runfold.core.events import Reason, Rejection, RunRequested, SideEffect, Status, ToolStatus
from runfold.log.codec import TYPE_HEADER, Codec
from runfold.log.partitioner import partition_of

from .schema_tables import PAGE, made, tables

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

TEXT = PAGE.read_text(encoding="utf-8")
ROOT = PAGE.parents[1]


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_tables_are_made_from_the_schemas_of_today() -> None:
    assert made() == tables(), "python -m tests.contract.schema_tables"


@pytest.mark.parametrize("enum", [Status, SideEffect, ToolStatus, Rejection, Reason])
def test_every_symbol_is_explained(enum: type[StrEnum]) -> None:
    explained = section("Enums").partition(f"**{enum.__name__}**")[2].partition("\n**")[0]
    assert {member.value for member in enum} <= set(re.findall("`([A-Z_]+)`", explained))


def test_the_bytes_of_the_example_are_those_of_a_release() -> None:
    block = section("Value").partition("```\n")[2].partition("```")[0]
    leading = [re.match("(?:[0-9a-f]{2} ?)+", line) for line in block.splitlines()]
    shown = bytes.fromhex("".join(found.group() for found in leading if found))
    assert shown == (ROOT / "tests/replay/bytes/0.1.0/RunCancelRequested.bin").read_bytes()


def test_the_partitions_to_try_are_right() -> None:
    rows = re.findall(r"^\| `([0-9a-f-]{36})` \| (\d+) \| (\d+) \|$", section("Key and partition"), re.M)
    assert rows
    for key, of_4, of_12 in rows:
        assert (partition_of(key.encode(), 4), partition_of(key.encode(), 12)) == (int(of_4), int(of_12))


@pytest.mark.parametrize("page", ["contract.md", "adding-a-record-type.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


def test_the_example_asks_for_a_run(bootstrap: str, topic: "TopicFactory", tmp_path: Path) -> None:
    name = topic()
    code = section("Asking for a run").partition("```python\n")[2].partition("```")[0]
    assert "localhost:9092" in code
    assert "runfold.runs" in code
    script = tmp_path / "ask.py"
    script.write_text(code.replace("localhost:9092", bootstrap).replace("runfold.runs", name), encoding="utf-8")
    run_id = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    value, headers = record_at(bootstrap, name, partition_of(run_id.encode(), 4))
    event = Codec().decode(value, headers[TYPE_HEADER])
    assert isinstance(event, RunRequested)
    assert (event.run_id, event.agent, event.limits.token_budget, event.limits.max_steps) == (run_id, "tickets", 50_000, None)


def record_at(bootstrap: str, topic: str, partition: int) -> tuple[bytes, dict[str, bytes]]:
    """Value and headers of the first record of a partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "docs", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert value is not None
        return value, dict(message.headers() or [])  # type: ignore[arg-type]
    finally:
        consumer.close()
