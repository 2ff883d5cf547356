"""One thread that owns one Kafka client: it makes it, it alone calls it, it lets it go."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from runfold.core.errors import LogError, LogUnavailable
from runfold.log.kafka.failures import log_error

C = TypeVar("C")
T = TypeVar("T")


class ClientThread(Generic[C]):
    """Runs functions on a client, in the order of the calls. The client is made by the first one.

    A call that overran is abandoned, not interrupted: the thread goes on when the client lets it, or never. It is a daemon: the
    process can end in any case.
    """

    def __init__(self, name: str, make: Callable[[], C], end: Callable[[C], None] = lambda client: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._make, self._end, self._name = make, end, name
        self._calls: SimpleQueue[tuple[Callable[[C], Any], asyncio.Future[Any] | None] | None] = SimpleQueue()
        self._awaited: set[asyncio.Future[Any]] = set()
        self.stopped = False
        Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[[C], T], seconds: float | None) -> T:
        """The result of ``function`` on the client. Raises `LogError`: what it raised, or that it took longer than ``seconds``.

        A `LogError` of the function arrives as it is, any other exception translated. None of them keeps the client alive.
        """
        if self.stopped:
            raise self._closed()
        future: asyncio.Future[T] = self._loop.create_future()
        self._awaited.add(future)
        self._calls.put((function, future))
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise LogUnavailable(f"{self._name}: no answer within {seconds} s; outcome unknown") from None
        finally:
            self._awaited.discard(future)

    def begin(self, function: Callable[[C], object]) -> None:
        """Run ``function`` on the client; nobody waits for it."""
        self._calls.put((function, None))

    def stop(self) -> None:
        """End what is awaited with `LogUnavailable`, and the client as soon as it comes back. Does not wait."""
        if not self.stopped:
            self.stopped = True
            self._calls.put(None)
            for future in self._awaited:
                _settle(future, None, self._closed())

    def _run(self) -> None:
        client: C | None = None
        while (call := self._calls.get()) is not None:
            function, future = call
            if self.stopped:
                continue
            try:
                client = self._make() if client is None else client
                self._tell(future, function(client), None)
            except LogError as error:
                self._tell(future, None, _bare(error))
            except Exception as error:  # the thread must outlive whatever a client raises
                self._tell(future, None, log_error(error, self._name))
            del function, future, call
        if client is not None:
            self._end(client)

    def _closed(self) -> LogUnavailable:
        return LogUnavailable(f"{self._name} was closed; what it was doing may be done or not")

    def _tell(self, future: asyncio.Future[Any] | None, result: object, error: LogError | None) -> None:
        if future is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(_settle, future, result, error)


def _bare(error: LogError) -> LogError:
    """Without the frames it came through: they hold the client, which must end on its own thread."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _settle(future: asyncio.Future[Any], result: object, error: LogError | None) -> None:
    if future.done():  # abandoned
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
