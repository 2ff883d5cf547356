"""The API in a process of its own, behind a real socket: ``python -m tests.unit.api_socket MAX_BYTES BODY_SECONDS``.

Prints its port, then serves until SIGTERM; at its end it prints how many runs were accepted.
"""

import asyncio
import sys

from runfold.api import create_app, serve
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryTail
from tests.unit.api_client import Projection, records_of


async def main(max_bytes: int, body_seconds: float) -> None:
    broker = MemoryBroker()
    commands, projection, tail = MemoryCommands(broker), Projection(broker), MemoryTail(broker)
    app = create_app(commands, projection, tail, max_body_bytes=max_bytes, body_seconds=body_seconds)
    await serve(app, "127.0.0.1", 0, on_bound=lambda port: print(port, flush=True))
    print(len(records_of(broker)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
