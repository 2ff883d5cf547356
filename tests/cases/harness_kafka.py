"""What a broker knows besides committed records: who is in a group, whose transactions there are, what groups have committed,
what stands in a log uncommitted. Blocking; of a scene's topic where a `Settings` is asked for.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, ConsumerGroupState, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from runfold.config import Settings
from runfold.log.kafka.client import dead_letter_topic
from runfold.log.kafka.message import Headers, headers_of

SECONDS = 20.0
OFFSET_KEYS = (0, 1)  # versions of the keys of offset commits in __consumer_offsets; other keys are of other things


def everything(
    settings: Settings, topic: str, partition: int, start: int = 0, isolation: str = "read_uncommitted"
) -> list[Message]:
    """The records of a partition from ``start`` up to its end as of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,  # the end is told by a fetch that comes back empty
        }
    )
    consumer.assign([TopicPartition(topic, partition, start)])
    found = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    assert message is not None, f"the end of {topic}/{partition} was not reached within {SECONDS:g} s"
    return found


def _internal(settings: Settings, topic: str) -> Iterator[Message]:
    """The records of a topic of the broker's own, in the order of each partition."""
    for partition in _admin(settings).list_topics(topic, SECONDS).topics[topic].partitions:
        yield from everything(settings, topic, partition)


def transactional_ids(settings: Settings) -> set[str]:
    """All that the broker has ever been told of: the client library does not list them, the transaction log does."""
    keys = [message.key() or b"" for message in _internal(settings, "__transaction_state")]
    return {_text(key, 2)[0] for key in keys}


def committed_offsets(settings: Settings) -> dict[int, list[int]]:
    """The offsets that the group has committed, by partition, in the order of committing."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for message in _internal(settings, "__consumer_offsets"):
        key, value = message.key() or b"", message.value()
        if value is None or struct.unpack_from(">h", key)[0] not in OFFSET_KEYS:
            continue
        group, at = _text(key, 2)
        topic, at = _text(key, at)
        if (group, topic) == (settings.group, settings.topic):
            found[struct.unpack_from(">i", key, at)[0]].append(struct.unpack_from(">q", value, 2)[0])
    return found


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A string that follows its length; where it ends."""
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def members(settings: Settings) -> dict[str, frozenset[int]]:
    """The partitions of each member of the group; its id is another one whenever it has to join anew."""
    return {
        member.member_id: frozenset(place.partition for place in member.assignment.topic_partitions)
        for member in _group(settings).members
    }


def assignor(settings: Settings) -> str:
    """How the group shares partitions out."""
    return str(_group(settings).partition_assignor)


def is_stable(settings: Settings) -> bool:
    return bool(_group(settings).state == ConsumerGroupState.STABLE)


def _group(settings: Settings) -> ConsumerGroupDescription:
    admin = _admin(settings)  # it must live until it has answered
    group: ConsumerGroupDescription = admin.describe_consumer_groups([settings.group])[settings.group].result(SECONDS)
    return group


def _admin(settings: Settings) -> AdminClient:
    return AdminClient({"bootstrap.servers": settings.bootstrap})


def dead_letters(settings: Settings, partitions: int) -> list[tuple[int, int, str]]:
    """(partition, offset, problem) of the records that the dead-letter topic tells of."""
    found = []
    for partition in range(partitions):
        for message in everything(settings, dead_letter_topic(settings), partition):
            said = {name: (value or b"").decode() for name, value in headers_of(message) if isinstance(value, bytes)}
            found.append((int(said["runfold-partition"]), int(said["runfold-offset"]), said["runfold-problem"]))
    return found


def transact(settings: Settings, partition: int, key: bytes, value: bytes, headers: Headers, *, commit: bool) -> None:
    """One record in a transaction that ends so."""
    producer = Producer({"bootstrap.servers": settings.bootstrap, "transactional.id": f"case.{settings.topic}.{partition}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(settings.topic, value, key, partition, headers=headers)
    assert producer.flush(SECONDS) == 0, "an abort may not overtake the record: it must be in the log"
    producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)


def forget(settings: Settings, before: Mapping[int, int]) -> None:
    """Delete the records of each partition before an offset: what retention does, at once."""
    places = [TopicPartition(settings.topic, *place) for place in before.items()]
    admin = _admin(settings)
    for future in admin.delete_records(places).values():
        future.result(SECONDS)


def placed(settings: Settings, keys: list[bytes], partitioner: str) -> dict[bytes, int]:
    """Where a client of any language puts records with these keys; theirs have no value, which everybody passes over."""
    found: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": settings.bootstrap, "partitioner": partitioner})

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        found[message.key() or b""] = message.partition() or 0

    for key in keys:
        producer.produce(settings.topic, None, key, on_delivery=delivered)
    assert producer.flush(SECONDS) == 0
    return found
