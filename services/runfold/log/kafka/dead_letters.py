"""The dead-letter topic: copies of records that no run can be made answerable for."""

from runfold.config import Settings
from runfold.core.events import Unreadable
from runfold.log.kafka import client
from runfold.log.kafka.message import Headers
from runfold.log.kafka.sender import Sender

MOST_BYTES = 64 * 1024  # of a copy's key, and of its value: the whole copy must fit, or its partition's position stays for ever


class DeadLetters:
    """Copies keep partition, key and value (each cut to `MOST_BYTES`); headers say where they stood and what was wrong."""

    def __init__(self, settings: Settings) -> None:
        self._source, self._topic = settings.topic, client.dead_letter_topic(settings)
        self._sender = Sender(settings)

    async def put(self, letter: Unreadable) -> None:
        """Raises `LogUnavailable`."""
        headers: Headers = [
            ("runfold-topic", self._source.encode()),
            ("runfold-partition", b"%d" % letter.partition),
            ("runfold-offset", b"%d" % letter.offset),
            ("runfold-timestamp", b"%d" % letter.timestamp),
            ("runfold-problem", letter.problem.encode()),
            ("runfold-detail", letter.detail.encode()),
        ]
        await self._sender.send(self._topic, _cut(letter.key), _cut(letter.value), headers, letter.partition)

    async def close(self) -> None:
        await self._sender.close()


def _cut(part: bytes | None) -> bytes | None:
    return None if part is None else part[:MOST_BYTES]
