"""The fake as a process of its own: prints its URL as one line, serves until it is told to stop."""

import argparse
import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from runfold.testing.fake_api.api import FakeMessagesApi
from runfold.testing.script import Script


def scripts(value: dict[str, Any]) -> Script | dict[str, Script]:
    """A file holds one script (`Script.to_json`), or an object of scripts by the beginning of the first user message."""
    return Script.from_json(value) if "answers" in value else {key: Script.from_json(script) for key, script in value.items()}


async def serve(arguments: argparse.Namespace) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    played = scripts(json.loads(arguments.script.read_text("utf-8")))
    async with FakeMessagesApi(played, port=arguments.port) as api:
        print(api.url, flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m runfold.testing.fake_api", description=__doc__)
    parser.add_argument("--script", type=Path, required=True, help="JSON file: see runfold.testing.Script.to_json")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
