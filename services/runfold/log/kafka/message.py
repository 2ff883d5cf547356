"""A Kafka message as the log's words have it."""

from typing import cast

from confluent_kafka import Message

from runfold.log.codec import TYPE_HEADER
from runfold.log.wire import LANE_HEADER, RawRecord

Headers = list[tuple[str, str | bytes | None]]


def headers_of(message: Message) -> Headers:
    """As they were received: as a list, whatever the type stub says."""
    return cast(Headers, message.headers() or [])


def raw_record(message: Message) -> RawRecord:
    headers = headers_of(message)
    type_header = next((value for name, value in headers if name == TYPE_HEADER), None)
    return RawRecord(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        type_header=type_header if isinstance(type_header, bytes) else None,
        from_owner=any(name == LANE_HEADER for name, _ in headers),
    )
