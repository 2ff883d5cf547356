"""Timeouts that settings take and the broker refuses: the message says which setting, and what the broker's are called."""

import json
import os
import re
import subprocess
import sys
from uuid import uuid4

import pytest

from runfold.config import Settings
from runfold.core.errors import LogUnavailable
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLog, create_topic


@pytest.fixture
def settings(bootstrap: str) -> Settings:
    name = f"refused-{uuid4().hex[:8]}"
    settings = Settings(
        bootstrap=bootstrap,
        topic=name,
        group=name,
        transaction_timeout_ms=3_600_000,  # the broker's most is 900_000, and of a session its least 1000
    )
    create_topic(settings, 1, 1)
    return settings


def test_a_worker_that_asks_for_a_session_that_the_broker_refuses_ends_and_says_so(settings: Settings) -> None:
    """It would wait for partitions for ever, and say nothing."""
    given = {"BOOTSTRAP": settings.bootstrap, "TOPIC": settings.topic, "SESSION_TIMEOUT_MS": "600", "HEARTBEAT_MS": "100"}
    ended = subprocess.run(
        [sys.executable, "-m", "runfold.cli", "worker", "--app", "runfold.local.demo_app:agent"],
        env=os.environ | {"ANTHROPIC_API_KEY": "none"} | {f"RUNFOLD_{name}": value for name, value in given.items()},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == os.EX_CONFIG, ended.stdout
    expected = r"refuses RUNFOLD_SESSION_TIMEOUT_MS: .* group\.min\.session\.timeout\.ms .*, got 600;"
    assert any(re.search(expected, json.loads(line)["message"]) for line in ended.stdout.splitlines())


async def test_a_transaction_timeout_that_the_broker_refuses_is_named(settings: Settings) -> None:
    """The partition is taken over as soon as the broker allows it."""
    log = await KafkaLog.open(settings, Codec())
    try:
        with pytest.raises(LogUnavailable, match=r"refuses RUNFOLD_TRANSACTION_TIMEOUT_MS: .* transaction\.max\.timeout\.ms;"):
            await log.fence(0)
    finally:
        await log.close()
