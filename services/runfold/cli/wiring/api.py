"""The API process."""

import asyncio
from collections.abc import Callable

from runfold.api import create_app, serve
from runfold.cli.wiring.topic import codec
from runfold.config import Settings
from runfold.log.kafka import KafkaCommands, KafkaTail
from runfold_projector.store import Reader


async def serve_api(settings: Settings, on_bound: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT. PostgreSQL may be away: it is asked when it is needed."""
    one_codec = codec(settings)
    commands, tail = KafkaCommands(settings, one_codec), await KafkaTail.open(settings, one_codec)
    reads = Reader(settings.dsn, settings.topic)
    try:
        app = create_app(
            commands, reads, tail, max_body_bytes=settings.max_body_bytes, stalled_seconds=settings.stalled_seconds
        )
        await serve(app, settings.host, settings.port, on_bound=on_bound)
    finally:
        await asyncio.gather(commands.close(), tail.close(), reads.close())
