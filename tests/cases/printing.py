"""A worker's process in small, for T04: its logging, and an executor of tools that print in every way there is.

``python -m tests.cases.printing`` prints what a worker would print."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import warnings

from runfold.agents import Agent, App
from runfold.ports import ToolCallRequest
from runfold.telemetry.logs import speak
from runfold.tools import tool
from runfold.tools.context import call_fields

log = logging.getLogger("runfold.step")
LAST = b"the last line\n"
RUN = "6f1c0a52-3b9e-4d2a-9c41-0d6a5f2b7e10"


@tool(side_effect="read")
def prints() -> str:
    """In a thread."""
    print("hello")
    print("two", "words", end="\n")
    print("not json: {", file=sys.stderr)
    sys.stdout.write("\x1b[31mred\x1b[0m\n")
    return "printed"


@tool(side_effect="read")
async def prints_async() -> str:
    print("hello from a task")
    return "printed"


@tool(side_effect="read")
def much() -> str:
    """1 MB without an end."""
    print("m" * 1_000_000, end="")
    sys.stdout.flush()
    return "much"


@tool(side_effect="read")
def beneath() -> str:
    """Past Python."""
    os.write(1, b"written to 1\n")
    os.write(2, b"written to 2\n")
    os.write(1, b"\xff\xfe no text and no end")
    subprocess.run([sys.executable, "-c", "import sys; print('a child'); print('its error', file=sys.stderr)"], check=True)
    subprocess.run([sys.executable, "-c", "print('a child of the stream')"], stdout=sys.stdout, check=True)
    sys.stdout.buffer.write(b"bytes of the stream\n")
    return "beneath"


@tool(side_effect="read")
def hijacks() -> str:
    """What libraries do to logging."""
    warnings.warn("a warning", stacklevel=1)
    logging.basicConfig(force=True, level=logging.DEBUG, format="PLAIN %(message)s")
    logging.warning("logged plainly")
    logging.root.handlers.clear()
    logging.warning("logged by nobody")
    return "hijacked"


class Listener(logging.Handler):
    """Hears the last line that came by each pipe: both are read by threads of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()
        self._pipes: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == LAST.decode().strip():
            self._pipes.add(record.__dict__["runfold.output"])
            if self._pipes == {"stdout", "stderr"}:
                self.heard.set()


async def main() -> None:
    speak("ecs", "worker-1", printing=call_fields)
    listener = Listener()
    logging.getLogger("runfold.output").addHandler(listener)
    tools = App([Agent("a", "m", tools=[prints, prints_async, much, beneath, hijacks])]).tools("a")
    for seq, name in enumerate(("prints", "prints_async", "much", "beneath", "hijacks"), 1):
        request = ToolCallRequest(RUN, seq, 1, f"t{seq}", name, "{}", f"{RUN}/1/t{seq}", 1)
        result = await tools.call(request)
        log.info("RESULT %s %s", name, json.loads(result.content_json))
    os.write(1, LAST)
    os.write(2, LAST)
    assert listener.heard.wait(10)
    log.info("still here")


if __name__ == "__main__":
    asyncio.run(main())
