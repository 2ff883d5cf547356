"""The world outside the runs, as worker processes meet it: a ledger of side effects, and places where a test can hold them.

A process says over a socket where it is and goes on when it is answered: at once, unless the test holds that place. A hold takes
the first who comes. Who dies there is no longer held. `World` is the test's side, the functions below are the workers'.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from runfold.tools import ToolContext
from tests.cases.oracles import Execution

ADDRESS = "CASES_WORLD"  # environment variable: host:port


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody is held."""

    place: str
    pid: int
    release: asyncio.Event = field(default_factory=asyncio.Event)


class World:
    """``async with World(changed) as world``; ``changed`` is called whenever there is something new to see."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._armed: set[str] = set()
        self.executions: list[Execution] = []
        self.held: dict[str, Visit] = {}
        self.address = ""

    async def __aenter__(self) -> "World":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release_all()
        self._server.close()

    def hold(self, *places: str) -> None:
        """Keep the next one who comes to each of these places."""
        self._armed |= set(places)

    def release(self, place: str) -> None:
        self.held[place].release.set()

    def release_all(self) -> None:
        self._armed.clear()
        for visit in self.held.values():
            visit.release.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return  # died before it could speak
        said = json.loads(line)
        if "key" in said:
            self.executions.append(Execution(said["key"], said["input"], said["pid"]))
            self._changed()
        if "ask" in said:
            _send(writer, sorted(self._armed.intersection(said["ask"])))
        else:
            await self._pass(said["place"], said["pid"], reader)
            _send(writer, "go on")
        writer.close()

    async def _pass(self, place: str, pid: int, reader: asyncio.StreamReader) -> None:
        if place not in self._armed:
            return
        self._armed.remove(place)
        visit = self.held[place] = Visit(place, pid)
        self._changed()
        released, died = asyncio.ensure_future(visit.release.wait()), asyncio.ensure_future(reader.read())
        await asyncio.wait({released, died}, return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        died.cancel()
        del self.held[place]
        self._changed()


def _send(writer: asyncio.StreamWriter, answer: Any) -> None:
    writer.write(json.dumps(answer).encode() + b"\n")


# ---- what worker processes say


def execute(name: str, given: Any, context: ToolContext) -> None:
    """A side effect of a tool: it is in the ledger before anybody is held here."""
    _ask({"place": f"effect {name}", "key": context.idempotency_key, "input": json.dumps(given)})


def pass_by(place: str) -> None:
    """Blocks where the test holds this place."""
    _ask({"place": place})


async def come_by(place: str) -> None:
    """`pass_by` on a loop, which may cancel it."""
    await _ask_on_the_loop({"place": place})


def is_held(place: str) -> bool:
    """Whether whoever comes there next will be held."""
    return bool(_ask({"ask": [place]}))


async def held(places: Collection[str]) -> set[str]:
    """Those where whoever comes next will be held."""
    return set(await _ask_on_the_loop({"ask": list(places)}))


def _ask(message: dict[str, Any]) -> Any:
    host, _, port = os.environ[ADDRESS].partition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rw") as line:
        line.write(json.dumps({**message, "pid": os.getpid()}) + "\n")
        line.flush()
        return json.loads(line.readline())


async def _ask_on_the_loop(message: dict[str, Any]) -> Any:
    host, _, port = os.environ[ADDRESS].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(json.dumps({**message, "pid": os.getpid()}).encode() + b"\n")
        return json.loads(await reader.readline())
    finally:
        writer.close()
