"""An event loop whose time is virtual and whose order of events is a function of its seed.

Time stands still while anything can run, then jumps to the next timer. Every callback belongs to one `Process`, which it inherits
from whoever scheduled it, so that processes can be frozen and killed at any await: callbacks of one process run in the order that
asyncio promises, those of different processes interleave as the seed has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LIVELOCK = 200_000  # callbacks without any time passing
CLOSINGS = 20  # times that a coroutine may refuse to be closed


class Stuck(Exception):
    """Nothing can run and no timer is set, or time does not pass any more."""


class Process:
    """One simulated operating-system process: its callbacks run in order, or not at all."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.frozen = self.dead = False
        self.thawed_at = float("-inf")
        self.ready: deque[asyncio.Handle] = deque()
        self.context = Context()
        self.context.run(_process.set, self)
        self._loop = loop
        self._due: tuple[int, Callable[[], object]] | None = None  # what befalls it, after how many callbacks

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` as a task of this process."""
        return self._loop.create_task(work, context=self.context.copy())

    def post(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have this process call ``callback`` after ``delay`` seconds, whoever asks."""
        self._loop.call_later(delay, callback, *args, context=self.context.copy())

    def befall(self, steps: int, what: Callable[[], object]) -> None:
        """Call ``what`` right before the process runs its ``steps``-th callback from now: in the middle of anything."""
        self._due = steps, what

    def kill(self) -> None:
        """kill -9: nothing of it runs any more, not even what stands in ``finally``."""
        self.dead = True
        self.ready.clear()
        self._loop.idle(self)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP: nothing of it runs for so long, or until `thaw`; its timers run out meanwhile."""
        self.frozen = True
        self._loop.idle(self)
        self._loop.world.post(seconds, self.thaw)

    def thaw(self) -> None:
        self.frozen, self.thawed_at = False, self._loop.time()
        if self.ready and not self.dead:
            self._loop.busy(self)

    def step(self) -> None:
        """Run the next callback."""
        if self._due is not None:
            left, what = self._due
            self._due = (left - 1, what) if left > 1 else None
            if left <= 1:
                what()
                return
        handle = self.ready.popleft()
        if not handle.cancelled():
            handle._run()
        if not self.ready:
            self._loop.idle(self)


_process: ContextVar[Process] = ContextVar("process")


def current_process() -> Process:
    """The process that the running callback belongs to."""
    return _process.get()


async def never() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


class VirtualLoop(asyncio.AbstractEventLoop):
    """Run one coroutine, and all that it starts, with `run`. ``failures`` are exceptions that nobody caught."""

    def __init__(self, order: Random) -> None:
        self.steps = 0
        self.failures: list[str] = []
        self.world = Process(self, "world")
        self._order = order
        self._now = 0.0
        self._since = 0  # steps when time passed last
        self._busy: list[Process] = []  # those with something to run
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []  # held: the garbage collector must not decide when a task ends
        self._halted = self._closed = False

    # ---- running

    def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What ``work`` returns, or None when `halt` was called first. Raises `Stuck`."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("a simulation has a loop of its own: call it where none is running")
        asyncio._set_running_loop(self)
        try:
            task = self.world.spawn(work)
            while not (task.done() or self._halted):
                self._step()
            return None if self._halted else task.result()
        finally:
            self._close()
            asyncio._set_running_loop(None)

    def halt(self) -> None:
        """Run nothing more."""
        self._halted = True

    def _step(self) -> None:
        if not self._busy:
            self._pass_time()
        some = len(self._busy)
        if some:
            self.steps += 1
            self._busy[int(self._order.random() * some) if some > 1 else 0].step()

    def _pass_time(self) -> None:
        """Jump to the next timer, and let all that are due then become ready."""
        if not self._timers:
            raise Stuck("nothing can run and no timer is set")
        self._now = max(self._now, self._timers[0][0])
        self._since = self.steps
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle, process = heappop(self._timers)
            self._make_ready(handle, process)

    def _make_ready(self, handle: asyncio.Handle, process: Process) -> None:
        if process.dead or handle.cancelled():
            return
        process.ready.append(handle)
        if len(process.ready) == 1 and not process.frozen:
            self.busy(process)
        if self.steps - self._since > LIVELOCK:
            raise Stuck(f"{LIVELOCK} callbacks ran at {self._now:.3f} s and time does not pass")

    def busy(self, process: Process) -> None:
        if process not in self._busy:
            self._busy.append(process)

    def idle(self, process: Process) -> None:
        if process in self._busy:
            self._busy.remove(process)

    def _close(self) -> None:
        """End what is left, its ``finally`` clauses too, with nothing reaching anything."""
        self._closed = True
        for task in self._tasks:
            if not task.done():
                _close(task.get_coro())
        self._tasks.clear()
        self._timers.clear()

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._make_ready(handle, self._process_of(context))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            heappush(self._timers, (when, next(self._numbers), timer, self._process_of(context)))
        return timer

    def _process_of(self, context: Context | None) -> Process:
        return _process.get(self.world) if context is None else context.get(_process, self.world)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is passed over when its time comes


def _close(work: Any) -> None:
    """Close a coroutine that may await while it is being closed."""
    for _ in range(CLOSINGS):
        try:
            work.close()
        except RuntimeError:  # it goes on awaiting
            continue
        except Exception:
            return
        return
