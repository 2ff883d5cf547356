"""Writing commands to Kafka, for the API and the command line."""

from runfold.config import Settings
from runfold.core.events import Command
from runfold.log.codec import TYPE_HEADER, Codec, record_type
from runfold.log.kafka.message import Headers
from runfold.log.kafka.sender import Sender
from runfold.log.wire import command_key


class KafkaCommands:
    """A `runfold.ports.Commands`. Not transactional: a command waits for nobody, and nobody for it.

    Made in a running loop; connects with the first command."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self._topic, self._codec, self._sender = settings.topic, codec, Sender(settings)

    async def send(self, command: Command) -> tuple[int, int]:
        headers: Headers = [(TYPE_HEADER, record_type(command))]
        return await self._sender.send(self._topic, command_key(command), self._codec.encode(command), headers)

    async def close(self) -> None:
        await self._sender.close()
