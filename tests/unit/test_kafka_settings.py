"""What RUNFOLD_KAFKA may change of our clients, and what not (`runfold.log.kafka.client`, `runfold.legal`)."""

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from runfold.cli.options import settings
from runfold.config import Settings
from runfold.core.errors import ConfigError
from runfold.legal import GUARANTEED, OWN_SETTINGS
from runfold.log.kafka import client

OURS_ALONE = [client.owner(Settings(), 0), *(make(Settings()) for make in (client.reader, client.member, client.sender))]
TUNED = {  # what the user may change, of what is set for the clients above
    "client.id",
    "error_cb",
    "fetch.error.backoff.ms",
    "fetch.min.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "check.crcs",
    "log_level",
    "logger",
    "max.poll.interval.ms",
    "message.timeout.ms",
    "queued.max.messages.kbytes",
    "reconnect.backoff.max.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "socket.keepalive.enable",
    "socket.timeout.ms",
}


@pytest.mark.parametrize(("drain", "longest"), [(0, 120_000), (30, 120_000), (600, 610_000), (1e9, 86_400_000)])
def test_no_member_is_expelled_in_the_middle_of_a_drain(drain: float, longest: int) -> None:
    """It blocks inside poll."""
    assert client.member(settings(drain_seconds=drain))["max.poll.interval.ms"] == longest
    client.make(Consumer, client.member(settings(drain_seconds=drain))).close()


def test_a_short_poll_interval_is_no_matter_of_the_consumers_without_a_group() -> None:
    for config in (client.reader, client.offsets):
        client.make(Consumer, config(settings(kafka={"max.poll.interval.ms": 6000}))).close()


@pytest.mark.parametrize("name", sorted(GUARANTEED))
def test_nobody_takes_a_guarantee_from_a_client(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^RUNFOLD_KAFKA: what Runfold promises rests on {name}"):
        settings(kafka={name: "1"})


@pytest.mark.parametrize(("name", "variable"), OWN_SETTINGS.items())
def test_what_has_a_variable_of_its_own_is_set_by_that_alone(name: str, variable: str) -> None:
    """An empty group.id would end the process inside the client."""
    with pytest.raises(ConfigError, match=f"^RUNFOLD_KAFKA: {name} is not set here but by {variable}: leave it out$"):
        settings(kafka={name: ""})


def test_what_is_set_for_a_client_is_tuned_or_refused() -> None:
    """Who adds a setting decides which."""
    assert set().union(*OURS_ALONE) - GUARANTEED - OWN_SETTINGS.keys() == TUNED


@pytest.mark.parametrize("config", [client.reader, client.member, client.sender])
def test_what_is_merely_tuned_may_be_changed(config: Any) -> None:
    assert config(Settings(kafka={"reconnect.backoff.max.ms": 7}))["reconnect.backoff.max.ms"] == 7


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as told:
        settings(kafka={"sasl.password": "secret", "acks": 0})
    assert "secret" not in str(told.value)


def test_what_the_client_refuses_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^RUNFOLD_KAFKA holds .* client refuses: .*fetch\.wait\.max\.ms.*$") as told:
        client.make(Consumer, client.reader(Settings(kafka={"fetch.wait.max.ms": -7})))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("session_ms", [500, 3_600_000])
def test_the_client_takes_every_session_timeout_that_settings_take(session_ms: int) -> None:
    client.make(Consumer, client.member(Settings(session_timeout_ms=session_ms, heartbeat_ms=100))).close()


@pytest.mark.parametrize("transaction_ms", [1000, 300_001, 86_400_000])
def test_the_client_takes_every_transaction_timeout_that_settings_take(transaction_ms: int) -> None:
    client.make(Producer, client.owner(Settings(transaction_timeout_ms=transaction_ms), 0))
