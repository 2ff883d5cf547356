"""The topics of a deployment: creating them, and refusing one that Runfold cannot rely on.

The AdminClient lives here alone, for the length of one call: while the broker is away it can abort the process. So
`create_topic` and `check_topic` are for the command line and for a process that is starting, never for a worker at work.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType

from runfold.config import Settings
from runfold.core.errors import LogUnavailable, TopicMismatch
from runfold.log.kafka import client
from runfold.log.kafka.failures import kafka_error

ADMIN_SECONDS = 15.0
BROKER_SECONDS = 3.0  # for one broker of several, which may be down
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
LEAST_MESSAGE_BYTES = 2 * 1024 * 1024

_LIVE = {  # of the side topic: minutes, and not much
    "cleanup.policy": "delete",
    "retention.ms": str(10 * 60 * 1000),
    "retention.bytes": str(64 * 1024 * 1024),
    "segment.ms": str(5 * 60 * 1000),  # only whole segments are deleted
    "segment.bytes": str(16 * 1024 * 1024),
    "message.timestamp.type": "LogAppendTime",
}


def partition_count(asker: Consumer | AdminClient, topic: str, seconds: float) -> int:
    """Raises `LogUnavailable`, `TopicMismatch` where there is no such topic."""
    try:
        found = asker.list_topics(topic, seconds).topics.get(topic)
    except KafkaException as error:
        told = error.args[0].str()
        raise LogUnavailable(
            f"no broker tells of topic {topic}: {told}; start Kafka (`runfold dev` does), or mend RUNFOLD_BOOTSTRAP"
        ) from None
    if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
        raise TopicMismatch(f"topic {topic} does not exist: create it with `runfold topic create`")
    if found.error is not None:
        raise LogUnavailable(f"topic {topic} cannot be described: {found.error}")
    return len(found.partitions)


def create_topic(settings: Settings, partitions: int, replication: int = -1) -> bool:
    """Create the topic, its dead-letter topic and the side topic of live text; False where one of the first two was there already
    (see `check_topic`; nothing depends on the side topic).

    ``replication`` -1 is the broker's default. Blocks. Raises `LogUnavailable`, `TopicMismatch` when the broker refuses.
    """
    config = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
    }
    names = (settings.topic, client.dead_letter_topic(settings))
    admin = client.make(AdminClient, client.admin(settings))
    wanted = [NewTopic(name, partitions, replication, config=config) for name in names]
    side = NewTopic(client.live_topic(settings), partitions, replication, config=_LIVE)
    futures = admin.create_topics([*wanted, side])
    created = [_created(futures[name], name) for name in names]
    _created(futures[side.topic], side.topic)
    _wait_for(settings, admin, [*names, side.topic])
    return all(created)


def check_topic(settings: Settings) -> int:
    """How many partitions the topic has, if it is what Runfold needs. Blocks.

    Raises `TopicMismatch`, which says what was found and what is wanted, and `LogUnavailable`.
    """
    admin = client.make(AdminClient, client.admin(settings))
    count = partition_count(admin, settings.topic, ADMIN_SECONDS)
    dead = client.dead_letter_topic(settings)
    if (witness := partition_count(admin, dead, ADMIN_SECONDS)) != count:
        raise TopicMismatch(
            f"topic {settings.topic} has {count} partitions, {dead} has {witness}: the two are created alike and must stay so. "
            f"Partitions that are added later part open runs from their records; use a new topic instead"
        )
    if wrong := _differences(_config_of(admin, settings.topic), settings.min_retention_ms):
        raise TopicMismatch(f"topic {settings.topic}: {'; '.join(wrong)}")
    return count


def _created(future: "Future[None]", name: str) -> bool:
    try:
        future.result(ADMIN_SECONDS)
    except TimeoutError:
        raise LogUnavailable(f"topic {name}: no broker answers within {ADMIN_SECONDS:.0f} s") from None
    except KafkaException as error:
        code = found.code() if (found := kafka_error(error)) else None
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT):
            raise LogUnavailable(f"topic {name}: no broker answers: {error}") from None
        raise TopicMismatch(f"topic {name} cannot be created: {error}") from None
    return True


def _wait_for(settings: Settings, admin: AdminClient, names: Sequence[str]) -> None:
    """Until every broker that answers shows the topics: whoever comes next asks any, and the controller knows them earlier."""
    deadline = time.monotonic() + ADMIN_SECONDS
    for broker in _each_broker(settings, admin):
        while missing := _missing(broker, names):
            if time.monotonic() > deadline:
                raise LogUnavailable(f"{missing} were created, but the brokers do not show them within {ADMIN_SECONDS:.0f} s")
            time.sleep(0.02)


def _each_broker(settings: Settings, admin: AdminClient) -> Iterator[AdminClient]:
    """A client asks the one that it was told of before it has connected to others."""
    brokers = admin.list_topics(timeout=ADMIN_SECONDS).brokers.values()
    if len(brokers) == 1:
        yield admin
        return
    for broker in brokers:
        yield client.make(AdminClient, client.admin(settings) | {"bootstrap.servers": f"{broker.host}:{broker.port}"})


def _missing(admin: AdminClient, names: Sequence[str]) -> Sequence[str]:
    try:
        shown = admin.list_topics(timeout=BROKER_SECONDS).topics
    except KafkaException:
        return ()  # it is down
    return [name for name in names if name not in shown]


def _config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(ADMIN_SECONDS)
    except TimeoutError:
        raise LogUnavailable(f"topic {topic}: no broker answers within {ADMIN_SECONDS:.0f} s") from None
    except KafkaException as error:
        found = kafka_error(error)
        if found is not None and found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise TopicMismatch(f"topic {topic}: its configuration may not be read; grant DESCRIBE_CONFIGS on it") from None
        raise LogUnavailable(f"topic {topic}: its configuration cannot be read: {error}") from None
    return {name: str(entry.value) for name, entry in entries.items()}


def _differences(config: dict[str, str], min_retention_ms: int | None) -> list[str]:
    """What is wrong with a topic's configuration, in words."""
    wanted = "-1 (unlimited)" if min_retention_ms is None else f"-1 or at least {min_retention_ms}"
    retention, size = int(config["retention.ms"]), int(config["max.message.bytes"])
    kept = retention == -1 or (min_retention_ms is not None and retention >= min_retention_ms)
    checks: list[tuple[str, bool, Any]] = [
        ("cleanup.policy", config["cleanup.policy"] == "delete", "delete"),
        ("retention.ms", kept, wanted),
        ("retention.bytes", config["retention.bytes"] == "-1", "-1 (unlimited)"),
        ("message.timestamp.type", config["message.timestamp.type"] == "LogAppendTime", "LogAppendTime"),
        ("max.message.bytes", size >= LEAST_MESSAGE_BYTES, f"at least {LEAST_MESSAGE_BYTES}"),
    ]
    return [f"{name} is {config[name]}, wanted {wish}" for name, fine, wish in checks if not fine]
