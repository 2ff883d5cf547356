"""Threads for tools that block.

A thread serves one job at a time. When a job overruns, its thread is given up, never reused, and the next job gets another one:
no number of tools that hang can slow those that don't. Into a thread that was given up an exception is thrown, again and again
until it ends, so that ``while True: pass`` does not eat the interpreter; one that sits in a system call is left there. All
threads are daemons: none of them keeps the process alive.

Everything here is called on the event loop's thread; only `_Thread._serve` runs elsewhere.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

KEEP_IDLE = 32  # threads kept for later jobs
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds between two exceptions thrown into the same thread


class Interrupted(SystemExit):
    """Thrown into a thread that was given up. A SystemExit: ``except Exception`` lets it pass, and no traceback is printed."""


class Job(Generic[T]):
    """A call in a thread. ``result`` is a future of the loop; of a job given up it is only cancelled, when the body has ended."""

    def __init__(self, threads: "Threads", thread: "_Thread", body: Callable[[], T]) -> None:
        self._threads, self._thread = threads, thread
        self._loop = asyncio.get_running_loop()
        self._body, self._context = body, copy_context()
        self.result: asyncio.Future[T] = self._loop.create_future()
        self._given_up = False

    def give_up(self) -> None:
        """Drop the result, whenever it may come, and leave the thread to its fate. Idempotent."""
        if not self._given_up and not self.result.done():
            self._given_up = True
            self._threads.given_up.add(self._thread)
            self._interrupt(_FIRST_PAUSE)

    def _interrupt(self, pause: float) -> None:
        if self._thread in self._threads.given_up and self._thread.interrupt():
            self._loop.call_later(pause, self._interrupt, min(pause * 2, _LONGEST_PAUSE))
        else:
            self._threads.given_up.discard(self._thread)

    def run(self) -> None:
        """In the thread. The body raises nothing (see `Threads.start`)."""
        value = self._context.run(self._body)
        self._loop.call_soon_threadsafe(self._end, value)

    def _end(self, value: T) -> None:
        if self._given_up:
            self.result.cancel()
        elif not self.result.done():
            self.result.set_result(value)
        self._threads.release(self._thread, reusable=not self._given_up)


class Threads:
    """As many threads as there are jobs; how many jobs there may be at a time is the caller's business."""

    def __init__(self, keep_idle: int = KEEP_IDLE) -> None:
        self._keep_idle = keep_idle
        self._idle: list[_Thread] = []
        self.given_up: set[_Thread] = set()  # still alive: its size is what a tool's bad manners cost

    def start(self, body: Callable[[], T]) -> Job[T]:
        """Run ``body`` in a thread, with the caller's context variables. It must catch everything, `BaseException` included."""
        thread = self._idle.pop() if self._idle else _Thread()
        job = Job(self, thread, body)
        thread.jobs.put(job.run)
        return job

    def release(self, thread: "_Thread", *, reusable: bool) -> None:
        if reusable and len(self._idle) < self._keep_idle:
            self._idle.append(thread)
        else:
            self.given_up.discard(thread)
            thread.jobs.put(None)

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().jobs.put(None)


class _Thread:
    """One daemon thread and its inbox; None ends it."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="runfold-tool", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(Interrupted, RuntimeError):  # RuntimeError: the loop is closed, nobody waits any more
            while (run := self.jobs.get()) is not None:
                run()

    def interrupt(self) -> bool:
        """Throw `Interrupted` at the next bytecode of the thread; False when it has ended."""
        if not self._thread.is_alive():
            return False  # its ident may belong to another thread by now
        ident = ctypes.c_ulong(self._thread.ident or 0)
        return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Interrupted)))
