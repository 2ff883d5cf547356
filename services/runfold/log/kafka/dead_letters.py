"""The dead-letter topic: copies of records that no run can be made answerable for."""

from runfold.config import Settings
from runfold.core.events import Unreadable
from runfold.log.kafka import client
from runfold.log.kafka.message import Headers
from runfold.log.kafka.sender import Sender

VALUE_BYTES = 64 * 1024  # of a copy, at most


class DeadLetters:
    """Copies keep key, partition and value (cut to `VALUE_BYTES`); headers say where they stood and what was wrong."""

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
        value = None if letter.value is None else letter.value[:VALUE_BYTES]
        await self._sender.send(self._topic, letter.key, value, headers, letter.partition)

    async def close(self) -> None:
        await self._sender.close()
