"""Timeouts that settings take and the broker refuses: the message says which setting, and what the broker's are called."""

import time
from uuid import uuid4

import pytest

from runfold.config import Settings
from runfold.core.errors import ConfigError, LogUnavailable
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLog, KafkaMembership, create_topic

DEADLINE_SECONDS = 30


@pytest.fixture
def settings(bootstrap: str) -> Settings:
    name = f"refused-{uuid4().hex[:8]}"
    settings = Settings(
        bootstrap=bootstrap,
        topic=name,
        group=name,
        session_timeout_ms=600,  # this broker's least is 1000
        heartbeat_ms=100,
        transaction_timeout_ms=3_600_000,  # its most is 900_000
    )
    create_topic(settings, 1, 1)
    return settings


def test_a_session_that_the_broker_refuses_ends_the_keeper(settings: Settings) -> None:
    """It would wait for partitions for ever, and say nothing."""
    member = KafkaMembership(settings)
    member.join(lambda partitions: None)
    expected = r"refuses RUNFOLD_SESSION_TIMEOUT_MS: .* group\.min\.session\.timeout\.ms .*, got 600;"
    try:
        with pytest.raises(ConfigError, match=expected):
            _poll(member)
    finally:
        member.leave()


def _poll(member: KafkaMembership) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        member.poll(0.1)


async def test_a_transaction_timeout_that_the_broker_refuses_is_named(settings: Settings) -> None:
    """The partition is taken over as soon as the broker allows it."""
    log = await KafkaLog.open(settings, Codec())
    try:
        with pytest.raises(LogUnavailable, match=r"refuses RUNFOLD_TRANSACTION_TIMEOUT_MS: .* transaction\.max\.timeout\.ms;"):
            await log.fence(0)
    finally:
        await log.close()
