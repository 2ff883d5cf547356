"""How each Kafka client of Runfold is configured. Every number here was measured; what it buys stands beside it.

``Settings.kafka`` goes to every client and may override what is merely tuned, never what the guarantees rest on:
`runfold.legal.GUARANTEED` names that, and refuses it.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException

from runfold.config import Settings
from runfold.core.errors import ConfigError
from runfold.log.wire import TRANSACTION_BYTES

ClientConfig = dict[str, Any]
Client = TypeVar("Client")

CALL_SECONDS = 5.0  # what a single call to the broker may take by its own timeout
DRAIN_GRACE_SECONDS = 10.0  # beyond the drain itself: its end is still to be written, and a worker that overruns it to be killed
_MESSAGE_BYTES = TRANSACTION_BYTES + 64 * 1024  # below max.message.bytes of the topic
_log = logging.getLogger("runfold.kafka")


def make(kind: Callable[[ClientConfig], Client], config: ClientConfig) -> Client:
    """A client. Raises `ConfigError` for a setting that it refuses: they come from ``RUNFOLD_KAFKA``."""
    try:
        return kind(config)
    except KafkaException as error:
        raise ConfigError(f"RUNFOLD_KAFKA holds what the Kafka client refuses: {error.args[0].str().strip()}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"RUNFOLD_KAFKA holds what the Kafka client refuses: {error}") from None


def dead_letter_topic(settings: Settings) -> str:
    return f"{settings.topic}.dead"


def live_topic(settings: Settings) -> str:
    return f"{settings.topic}.live"


def transactional_id(settings: Settings, partition: int) -> str:
    """One per partition: it is the partition's fence. The namespace keeps deployments on one cluster apart."""
    return f"{settings.namespace}.{settings.group}.{settings.topic}.{partition}"


def owner(settings: Settings, partition: int) -> ClientConfig:
    """The transactional producer of one owned partition."""
    timeout = settings.transaction_timeout_ms
    tuned = {
        "retry.backoff.ms": 1,  # slept whenever the markers of the last transaction are not written yet: default 100
        "retry.backoff.max.ms": 200,
        "socket.timeout.ms": min(timeout, 300_000),  # must not be longer than the transaction's; the client's own bound
        "message.timeout.ms": min(5000, timeout),  # must not be longer either
    }
    fixed = {
        "logger": _log,  # being fenced is fatal to a producer, and it would say so on stderr
        "enable.idempotence": True,
        "acks": "all",
        "transactional.id": transactional_id(settings, partition),
        "transaction.timeout.ms": timeout,
        "linger.ms": 0,
        "batch.size": _MESSAGE_BYTES,  # a transaction is one batch: all or nothing also after a broker crash
        "message.max.bytes": _MESSAGE_BYTES,
    }
    return _config(settings, "owner", tuned, fixed)


def reader(settings: Settings) -> ClientConfig:
    """The consumer that reads the owned partitions, assigned by hand."""
    tuned = {
        "fetch.wait.max.ms": 100,  # one fetch is in flight per broker: a new partition waits for it
        "fetch.min.bytes": 1,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 50,  # default 1000
        "queued.max.messages.kbytes": 16_384,
        "check.crcs": True,
    }
    return _config(settings, "reader", tuned, _by_hand("read_committed"))


def tail(settings: Settings, isolation: str) -> ClientConfig:
    """The consumer that reads up to the end and stops: it learns of the end from a fetch that comes back empty."""
    tuned = {"fetch.wait.max.ms": 5, "fetch.error.backoff.ms": 50, "fetch.queue.backoff.ms": 50}
    return _config(settings, "tail", tuned, _by_hand(isolation) | {"enable.partition.eof": True})


def offsets(settings: Settings) -> ClientConfig:
    """The consumer that asks for the group's offsets, reads nothing, and waits for no transaction."""
    return _config(settings, "offsets", {}, _by_hand("read_uncommitted"))


def member(settings: Settings) -> ClientConfig:
    """The keeper's seat in the group."""
    tuned = {
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": settings.heartbeat_ms,
        "max.poll.interval.ms": _longest_poll(settings),
    }
    fixed = {"partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False, "auto.offset.reset": "latest"}
    return _config(settings, "keeper", tuned, fixed)


def _longest_poll(settings: Settings) -> int:
    """Milliseconds: a drain blocks inside poll, and a member that polls too late is expelled.

    No less than a session, no more than the client takes, a day."""
    drain = settings.drain_seconds + DRAIN_GRACE_SECONDS
    return max(120_000, settings.session_timeout_ms, min(int(drain * 1000), 86_400_000))


def sender(settings: Settings) -> ClientConfig:
    """The producer of what stands outside transactions: commands and dead letters."""
    tuned = {"linger.ms": 0, "message.timeout.ms": 9000, "retry.backoff.ms": 20}
    fixed = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random", "message.max.bytes": _MESSAGE_BYTES}
    return _config(settings, "sender", tuned, fixed)


def live(settings: Settings) -> ClientConfig:
    """The producer of live text: what it cannot get rid of in a few seconds it drops, and it never holds much."""
    tuned = {
        "acks": 1,
        "linger.ms": 5,  # many runs talk at once
        "message.timeout.ms": 3000,
        "queue.buffering.max.messages": 10_000,
        "queue.buffering.max.kbytes": 8192,
        "max.in.flight.requests.per.connection": 1,  # a retry must not come after what was shown later
    }
    fixed = {"enable.idempotence": False, "partitioner": "murmur2_random", "delivery.report.only.error": True}
    return _config(settings, "live", tuned, fixed)


def live_reader(settings: Settings) -> ClientConfig:
    tuned = {"fetch.wait.max.ms": 100, "fetch.error.backoff.ms": 50, "fetch.queue.backoff.ms": 50}
    by_hand = _by_hand("read_uncommitted") | {"auto.offset.reset": "earliest"}  # what is gone is gone
    return _config(settings, "watcher", tuned, by_hand)


def admin(settings: Settings) -> ClientConfig:
    return _config(settings, "admin", {}, {})


def log_trouble(error: KafkaError) -> None:
    """The ``error_cb`` of the clients: what librdkafka mends by itself."""
    level = logging.WARNING if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal() else logging.DEBUG
    _log.log(level, "%s", error)


def _by_hand(isolation: str) -> ClientConfig:
    alone = {"session.timeout.ms": 1000}  # of no group; the client compares it with a max.poll.interval.ms that users set
    return {"isolation.level": isolation, "enable.auto.commit": False, "auto.offset.reset": "error", **alone}


def _config(settings: Settings, role: str, tuned: ClientConfig, fixed: ClientConfig) -> ClientConfig:
    common: ClientConfig = {
        "bootstrap.servers": settings.bootstrap,
        "client.id": f"runfold-{role}-{os.getpid()}-{uuid4().hex[:6]}",
        "reconnect.backoff.max.ms": 1000,
        "socket.keepalive.enable": True,
        "log_level": 2,  # librdkafka would write to stderr; what matters arrives as an error
        "error_cb": log_trouble,
    }
    if role in _CONSUMERS:
        common |= {"group.id": settings.group, "allow.auto.create.topics": False}
    return common | tuned | settings.kafka | fixed


_CONSUMERS = {"reader", "tail", "offsets", "keeper", "watcher"}
