"""What RUNFOLD_KAFKA may change of our clients, and what not (`runfold.log.kafka.client`)."""

from typing import Any

import pytest

from runfold.config import Settings
from runfold.log.kafka import client


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "transactional.id", "linger.ms"])
def test_nobody_takes_a_guarantee_from_the_owner_s_producer(name: str) -> None:
    plain, told = client.owner(Settings(), 0), client.owner(Settings(kafka={name: "1"}), 0)
    assert told[name] == plain[name]


@pytest.mark.parametrize("config", [client.reader, client.member, client.sender])
def test_what_is_merely_tuned_may_be_changed(config: Any) -> None:
    assert config(Settings(kafka={"reconnect.backoff.max.ms": 7}))["reconnect.backoff.max.ms"] == 7
