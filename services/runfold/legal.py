"""What a setting may say, where a type does not tell. Each rule returns what it was given; its `ValueError` is what is expected.

Kafka's own client is no judge of these: some it takes and ignores, and one, an empty group, ends the process.
"""

import re
from typing import Any
from urllib.parse import urlsplit

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,244}")  # Kafka takes 249: <topic>.dead and <topic>.live are topics too
_HOST = re.compile(r"[^\s/\[\]]+")
_BROKER = re.compile(r"([A-Za-z_]+://)?(\[[0-9a-fA-F:.%]+\]|[^\s,:/\[\]]+)(:(?P<port>[0-9]{1,5}))?")

OWN_SETTINGS = {
    "bootstrap.servers": "RUNFOLD_BOOTSTRAP",
    "metadata.broker.list": "RUNFOLD_BOOTSTRAP",
    "group.id": "RUNFOLD_GROUP",
    "session.timeout.ms": "RUNFOLD_SESSION_TIMEOUT_MS",
    "heartbeat.interval.ms": "RUNFOLD_HEARTBEAT_MS",
    "transaction.timeout.ms": "RUNFOLD_TRANSACTION_TIMEOUT_MS",
    "transactional.id": "RUNFOLD_NAMESPACE",
}  # settings of the Kafka client that are ours by another name

GUARANTEED = frozenset({
    "acks",
    "request.required.acks",  # the same by another name
    "enable.idempotence",
    "linger.ms",
    "queue.buffering.max.ms",  # the same by another name
    "batch.size",
    "batch.num.messages",
    "message.max.bytes",
    "partitioner",
    "delivery.report.only.error",
    "isolation.level",
    "enable.auto.commit",
    "enable.partition.eof",
    "auto.offset.reset",
    "allow.auto.create.topics",
    "partition.assignment.strategy",
    "group.protocol",
    "group.instance.id",  # a static member gives nothing back when it ends
    "default.topic.config",  # acks and partitioner can hide in it
})  # fmt: skip


def topic(text: str) -> str:
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError("expected a topic's name, 1 to 244 of a-z A-Z 0-9 . _ -")
    return text


def name(text: str) -> str:
    """Of a group, or the first part of a transactional id: Kafka takes any text."""
    if not text.strip() or not text.isprintable() or len(text) > 249:
        raise ValueError("expected 1 to 249 printable characters")
    return text


def brokers(listed: str) -> str:
    """Empty: none given."""
    if listed and not all(map(_is_broker, listed.split(","))):
        raise ValueError("expected host:port[,host:port]")
    return listed


def _is_broker(text: str) -> bool:
    found = _BROKER.fullmatch(text.strip())
    return found is not None and 1 <= int(found["port"] or 9092) <= 65535


def host(text: str) -> str:
    """To listen on. The system takes an empty one for every address, and stumbles over a label of more than 63 characters."""
    if not _HOST.fullmatch(text) or not _is_encodable(text):
        raise ValueError("expected an address or the name of a host, 0.0.0.0 for every address")
    return text


def _is_encodable(name: str) -> bool:
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def url(text: str) -> str:
    """Empty: none given."""
    if text and not _is_url(text):
        raise ValueError("expected http://host[:port] or https://…")
    return text


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:  # of a port or an address that is none
        return False


def kafka(given: dict[str, Any]) -> dict[str, Any]:
    """Settings of the Kafka clients that Runfold's promises do not rest on."""
    for setting in given:
        if ours := OWN_SETTINGS.get(setting):
            raise ValueError(f"{setting} is not set here but by {ours}: leave it out")
        if setting in GUARANTEED:
            raise ValueError(f"what Runfold promises rests on {setting}, which it sets itself: leave it out")
    return given
