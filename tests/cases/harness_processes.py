"""The processes of a scene: workers with their keepers, each with a log file; what may be killed, and what must not be left."""

import asyncio
import json
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from runfold.core.errors import StackError
from runfold.local.process import GuardedProcess

ROOT = Path(__file__).parents[2]  # where `python -m tests…` is understood
CLI = ("-m", "runfold.cli")
HELD = ("-c", "from tests.cases.harness_worker import main; main()")
APP = "tests.cases.apps:app"
STOP_SECONDS = 40.0  # for a drain
LEFT_SECONDS = 10.0  # that an orphan has to notice that it is one

_DEATH = re.compile(r"worker process (\d+) (died|fell silent|was killed)")


class Processes:
    """Workers by name. ``environment`` goes to each; ``marker`` is in it, and in no other process of this machine.

    ``ended`` is called, on the loop, whenever a keeper has ended.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], marker: str, ended: Callable[[], None]) -> None:
        self._root, self._environment, self._marker, self._ended = root, dict(environment), marker, ended
        self._running: dict[str, GuardedProcess] = {}
        self._lock = os.open(root / "processes.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._metrics: dict[str, str] = {}  # URL, by name
        self.logs: dict[str, Path] = {}
        self.killed: set[int] = set()  # worker processes that the test killed

    @property
    def names(self) -> set[str]:
        """Of the keepers that run, or should."""
        return set(self._running)

    def start(self, name: str, *, entry: Sequence[str] = CLI, app: str = APP, environment: Mapping[str, str]) -> None:
        """A keeper and its worker; a log file per start."""
        log = self._root / f"{name}.log"
        while log in self.logs.values():
            log = log.with_stem(f"{log.stem}+")
        port = free_port()
        self._metrics[name] = f"http://127.0.0.1:{port}/metrics"
        variables = {**self._environment, "RUNFOLD_METRICS_PORT": str(port), **environment}
        given = [f"{key}={value}" for key, value in variables.items()]
        command = ["/usr/bin/env", *given, sys.executable, *entry, "worker", "--app", app, "--name", name]
        self.logs[log.stem] = log
        self._running[name] = GuardedProcess(command, ROOT, log, signal.SIGTERM, self._lock)
        self._watch(self._running[name].guard_pid)

    def _watch(self, pid: int) -> None:
        loop, watched = asyncio.get_running_loop(), os.pidfd_open(pid)

        def ended() -> None:
            loop.remove_reader(watched)
            os.close(watched)
            self._ended()

        loop.add_reader(watched, ended)

    def kill_worker(self, pid: int) -> None:
        """kill -9 of a worker process: its keeper will start the next one."""
        self.killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def kill_keeper(self, name: str) -> None:
        """kill -9 of a keeper: its worker ends, nobody replaces it."""
        self._running.pop(name).kill()

    def kill_both(self, name: str, pid: int) -> None:
        """The loss of a machine."""
        self.kill_keeper(name)
        with suppress(ProcessLookupError):  # it has noticed already
            self.kill_worker(pid)

    def pids(self, name: str) -> list[int]:
        """Of a keeper, its worker and the servers that they were forked from: all that its machine runs."""
        port = self._metrics[name].removesuffix("/metrics").rpartition(":")[2]
        return marked(f"RUNFOLD_METRICS_PORT={port}\0")

    def signal(self, name: str, number: signal.Signals) -> None:
        """To each process of a machine: SIGSTOP and SIGCONT suspend it and wake it up."""
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_machine(self, name: str) -> None:
        """kill -9 of each process of a machine; nobody replaces one."""
        self.killed |= set(self.pids(name))
        self.signal(name, signal.SIGKILL)
        self._running.pop(name).stop()

    async def stop(self, *names: str) -> None:
        """SIGTERM, and wait for the end, which must be a good one: a planned restart."""
        ends = (asyncio.to_thread(_stop, self._running.pop(name)) for name in names)
        errors = [error for error in await asyncio.gather(*ends, return_exceptions=True) if error is not None]
        for error in errors:
            raise error

    async def close(self) -> list[str]:
        """End everything; what was left although its keeper is gone (it is killed)."""
        try:
            await self.stop(*self._running)
        finally:
            left = await self._end_orphans()
            os.close(self._lock)
        return left

    async def _end_orphans(self) -> list[str]:
        await asyncio.gather(*(asyncio.to_thread(wait_for_end, pid, LEFT_SECONDS) for pid in marked(self._marker)))
        orphans = marked(self._marker)
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        return [f"process {pid} outlived its keeper" for pid in orphans]

    async def metric(self, name: str, sample: str) -> float:
        """The value of ``sample``, name and labels, at a worker; 0 where it has none."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(self._metrics[name])).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{sample} "))

    async def readiness(self, name: str) -> object:
        """What a worker's ``/readyz`` says."""
        async with httpx.AsyncClient() as client:
            return (await client.get(self._metrics[name].removesuffix("/metrics") + "/readyz")).json()

    def accidents(self) -> list[str]:
        """Keepers that ended and workers that were replaced without the test."""
        found = self.ends()
        for name, log in self.logs.items():
            deaths = [match for line in lines(log) if (match := _DEATH.search(line))]
            found += [f"{name}: {match[0]}" for match in deaths if int(match[1]) not in self.killed]
        return found

    def ends(self) -> list[str]:
        """Keepers that have ended without the test, with the end of their logs."""
        found = []
        for name, process in self._running.items():
            try:
                process.check_alive()
            except StackError as error:
                found.append(f"{name}: {error}")
        return found

    def messages(self, name: str) -> list[str]:
        """What a keeper and its workers have said."""
        return [json.loads(line)["message"] for line in lines(self.logs[name])]

    def output(self) -> dict[str, list[str]]:
        return {name: lines(log) for name, log in self.logs.items()}


def marked(marker: str) -> list[int]:
    """Processes that have ``marker`` in their environment, those whose parents are gone included."""

    def is_marked(process: Path) -> bool:
        try:
            return marker.encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if is_marked(entry)]


def _stop(process: GuardedProcess) -> None:
    try:
        process.check_alive()
        os.kill(process.pid, signal.SIGTERM)
        process.finish(STOP_SECONDS)
    finally:
        process.stop()  # what is left of it, and the pipe to its guard


def wait_for_end(pid: int, seconds: float) -> bool:
    """Whether a process has ended, after at most ``seconds``."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def slowness() -> float:
    """What limits on time are multiplied with: 1 on a machine that has nothing else to do, more the more wait for a core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def lines(log: Path) -> list[str]:
    """The whole lines of a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class Background:
    """A part that runs in a thread until it is told to stop, and can be started again."""

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        self._run = run
        self._stop, self._thread = threading.Event(), threading.Thread()

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[self._stop], daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
