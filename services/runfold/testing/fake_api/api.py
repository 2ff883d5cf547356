"""The fake Messages API itself: a loopback HTTP server that plays scripts to well-formed conversations and refuses all others."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runfold.testing import sse
from runfold.testing.fake_api.cache import PromptCache
from runfold.testing.fake_api.checker import Checker
from runfold.testing.fake_api.http import Connection, Request
from runfold.testing.fake_api.ledger import Hit, Ledger
from runfold.testing.fake_api.player import play
from runfold.testing.prompter import Cue, Prompter
from runfold.testing.script import Script


class FakeMessagesApi:
    """``async with FakeMessagesApi(script) as api:`` then talk to ``api.url`` through the real SDK.

    ``scripts`` is one script for all conversations, or several by what the first user message begins with (see `Prompter`).
    Whatever breaks a rule gets 400 ``invalid_request_error`` and an entry in ``violations``: end a test with
    ``assert not api.violations``. A request that no script foresees is a violation, too; so is one that tells otherwise what was
    sent before. With ``caching`` the input side of a scripted message's usage is that of a prompt cache, see `PromptCache`.

    Other processes have the same by HTTP: GET /__ledger, GET /__waiting, POST /__release/NAME. The GETs wait for
    ``?hits=N`` (``&conversation=TEXT``) or ``?name=NAME``, up to ``&within=SECONDS`` (default 10), then answer 408.
    """

    def __init__(
        self,
        scripts: Script | Mapping[str, Script],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unique_ids: bool = True,
        caching: bool = False,
    ) -> None:
        self._prompter = Prompter({"": scripts} if isinstance(scripts, Script) else scripts)
        self._host, self._port = host, port
        self._checker, self._cache = Checker(unique_ids=unique_ids), PromptCache() if caching else None
        self._ledger = Ledger()
        self._released: set[str] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self.waiting: list[str] = []  # names of held answers
        self.connections = 0  # accepted so far
        self.url = ""

    # ---- for tests

    @property
    def requests(self) -> list[Hit]:
        """Every request so far, refused ones included."""
        return self._ledger.hits

    def hits(self, conversation: str | None = None) -> int:
        """How many requests there were, of one conversation (the text of its first user message) or at all."""
        return sum(conversation in (None, hit.conversation) for hit in self.requests)

    @property
    def violations(self) -> list[str]:
        return [f"request {hit.number}: {hit.complaint}" for hit in self.requests if hit.complaint]

    @property
    def repeated(self) -> list[Hit]:
        """Requests whose messages had got a whole answer before: none, unless that answer was lost before its commit."""
        return self._ledger.repeated()

    def release(self, name: str) -> None:
        """Let what is held under ``name`` go, now and later. From any thread."""
        self._loop.call_soon_threadsafe(self._release, name)

    async def until(self, predicate: Callable[[], bool], within: float = 10.0) -> None:
        """Wait for something to become true of this object, looking again at every change. From any loop."""
        waiting = asyncio.run_coroutine_threadsafe(self._until(predicate, within), self._loop)
        await asyncio.wrap_future(waiting)

    async def until_held(self, name: str, within: float = 10.0) -> None:
        await self.until(lambda: name in self.waiting, within)

    async def until_hits(self, count: int, conversation: str | None = None, within: float = 10.0) -> None:
        await self.until(lambda: self.hits(conversation) >= count, within)

    # ---- life

    async def __aenter__(self) -> "FakeMessagesApi":
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @contextmanager
    def in_thread(self) -> "Iterator[FakeMessagesApi]":
        """The same in a thread with a loop of its own, for tests that block theirs."""
        ready, stop = threading.Event(), asyncio.Event()

        async def live() -> None:
            async with self:
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(live(),), name="fake-messages-api", daemon=True)
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join()

    # ---- serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        connection = Connection(reader, writer)
        try:
            while (request := await connection.request()) and await self._answer(request, connection):
                pass
        except asyncio.CancelledError:
            pass  # the fake is closing
        finally:
            self._serving.discard(task)
            connection.close()

    async def _answer(self, request: Request, connection: Connection) -> bool:
        """Answer one request; False when the connection is of no use any more."""
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["v1", "messages"]:
                return await self._messages(request, connection)
            case "GET", ["__ledger"]:
                await self._after(self._hits_reached(request.query), request, connection, self._ledger.to_json)
            case "GET", ["__waiting"]:
                name = request.query.get("name")
                await self._after(lambda: name is None or name in self.waiting, request, connection, lambda: self.waiting)
            case "POST", ["__release", name]:
                self._release(name)
                await connection.respond(200, self.waiting)
            case _:
                await connection.respond(404, sse.error_event("not_found_error", f"no such path: {request.path}"))
        return True

    async def _messages(self, request: Request, connection: Connection) -> bool:
        hit = self._ledger.open(self._loop.time())
        hit.complaint = self._examine(request, hit)
        cue = None if hit.complaint else self._prompter.cue(hit.body["messages"])
        if cue is not None:
            hit.conversation, hit.turn = cue.conversation, cue.turn
            hit.complaint = self._examine_history(hit, cue)
        self._ledger.changed()
        if cue is None or hit.complaint:
            hit.status, hit.answer = 400, sse.error_event("invalid_request_error", hit.complaint or "")
            await connection.respond(400, hit.answer, {"request-id": hit.request_id})
            return True
        assert cue.answer is not None
        return await self._unless_left(play(cue.answer, hit, connection, self._hold, self._cache), hit, connection)

    def _examine(self, request: Request, hit: Hit) -> str | None:
        """Read the body into ``hit``; the first rule it breaks."""
        if not request.headers.keys() & {"authorization", "x-api-key"}:
            return "no credentials: expected an Authorization header"
        try:
            hit.body = json.loads(request.body.decode("utf-8"), parse_constant=_no_constant)
        except ValueError as error:
            return f"the body is not valid UTF-8 JSON: {error}"
        if not isinstance(hit.body, dict):
            return "the body is not an object"
        if not hit.body.get("stream"):
            return "stream: expected true"
        return self._checker.complaint(hit.body, self._paused(hit.body))

    def _paused(self, body: dict[str, Any]) -> list[bool]:
        try:
            return self._prompter.paused(body["messages"])
        except (KeyError, TypeError, IndexError, AttributeError):
            return []  # malformed: the rules will say how

    def _examine_history(self, hit: Hit, cue: Cue) -> str | None:
        if cue.answer is None:
            return f"no script foresees turn {cue.turn} of {cue.conversation!r}"
        return self._checker.drift(hit.body, cue.conversation, cue.turn)

    async def _unless_left(self, playing: Coroutine[Any, Any, bool], hit: Hit, connection: Connection) -> bool:
        """Play until the end, or until the client leaves."""
        played, left = asyncio.ensure_future(playing), asyncio.ensure_future(connection.left())
        try:
            await asyncio.wait({played, left}, return_when=asyncio.FIRST_COMPLETED)
            hit.complete = played.done() and played.exception() is None
            hit.aborted = not hit.complete
            return hit.complete and played.result()
        finally:
            played.cancel()
            left.cancel()
            await asyncio.gather(played, left, return_exceptions=True)
            self._remember(hit)
            self._ledger.changed()

    def _remember(self, hit: Hit) -> None:
        """What the client must send back as it was."""
        if "content" in hit.message:
            self._checker.answered(hit.conversation, hit.turn, hit.message["content"])

    # ---- holding and waiting

    async def _hold(self, name: str) -> None:
        self.waiting.append(name)
        self._ledger.changed()
        try:
            await self._ledger.until(lambda: name in self._released)
        finally:
            self.waiting.remove(name)

    def _release(self, name: str) -> None:
        self._released.add(name)
        self._ledger.changed()

    async def _until(self, predicate: Callable[[], bool], within: float) -> None:
        async with asyncio.timeout(within):
            await self._ledger.until(predicate)

    def _hits_reached(self, query: Mapping[str, str]) -> Callable[[], bool]:
        return lambda: self.hits(query.get("conversation")) >= int(query.get("hits", 0))

    async def _after(
        self, predicate: Callable[[], bool], request: Request, connection: Connection, view: Callable[[], Any]
    ) -> None:
        try:
            await self._until(predicate, float(request.query.get("within", 10)))
        except TimeoutError:
            await connection.respond(408, view())
        else:
            await connection.respond(200, view())


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
