"""A whole Runfold on this machine: the local stack and, as guarded children, our own processes.

None of them outlives us, however we end.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from runfold.config import Settings
from runfold.core.errors import StackError
from runfold.local import KafkaJars, LocalStack
from runfold.local.lock import locked
from runfold.local.places import absolute, keeping
from runfold.local.process import GuardedProcess
from runfold.local.progress import Progress
from runfold.log.kafka import create_topic
from runfold.testing import Script

PARTITIONS = 4  # each costs broker time per transaction: on one small machine four carry the most
START_SECONDS = 60.0

T = TypeVar("T")


class Deployment:
    """Context manager: inside the block Kafka and PostgreSQL answer and the topic exists; the rest is started by name."""

    def __init__(self, root: Path, chosen: Settings, progress: Progress) -> None:
        self.root = absolute(root)
        jars = KafkaJars(chosen.cache_dir, chosen.maven_mirror)
        self.stack = LocalStack(self.root, bootstrap=chosen.bootstrap, dsn=chosen.dsn, jars=jars, progress=progress)
        self.settings, self._progress = chosen, progress
        self._environment: dict[str, str] = {}
        self._processes: dict[str, GuardedProcess] = {}
        self._plans: dict[str, tuple[list[str], Mapping[str, str]]] = {}  # how each was started
        self.metrics_ports: dict[str, int] = {}  # by name of the process, where RUNFOLD_METRICS_PORT asks for them
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._lock = undo.enter_context(locked(self.root / "processes.lock", self._progress))  # of all, given servers or not
            undo.enter_context(self.stack)
            undo.callback(self._stop_all)
            self.settings = self.settings.model_copy(update={"bootstrap": self.stack.bootstrap, "dsn": self.stack.dsn})
            self._environment = {"RUNFOLD_BOOTSTRAP": self.stack.bootstrap, "RUNFOLD_DSN": self.stack.dsn}
            create_topic(self.settings, PARTITIONS)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()

    # ---- our processes

    def start(self, name: str, *words: str, environment: Mapping[str, str] = {}) -> GuardedProcess:
        """``runfold WORDS`` as a child; its output goes to ``<root>/<name>.log``."""
        return self._spawn(name, ["-m", "runfold.cli", *words], environment)

    def start_api(self, port: int) -> str:
        """The API's URL, once it answers."""
        ready = self.root / "api.url"
        with keeping(self.root):
            ready.unlink(missing_ok=True)
        api = self.start("api", "api", "--port", str(port), "--ready-file", str(ready))
        api.wait_until(lambda: ready.exists() and ready.read_text().startswith("http"), START_SECONDS)
        return ready.read_text()

    def start_projector(self) -> GuardedProcess:
        return self.start("projector", "projector", environment=self._metrics("projector"))

    def start_worker(self, name: str, app: str, environment: Mapping[str, str] = {}) -> GuardedProcess:
        given = {**self._metrics(name), **environment}
        return self.start(name, "worker", "--app", app, "--name", name, environment=given)

    def start_scripted_model(self, script: Script) -> str:
        """A Messages API that answers from a script; its URL."""
        file = self.root / "script.json"
        with keeping(self.root):
            file.write_text(json.dumps(script.to_json()))
        process = self._spawn("model", ["-m", "runfold.testing.fake_api", "--script", str(file)])
        process.wait_until(lambda: "http" in process.log.read_text(), START_SECONDS)
        return process.log.read_text().split()[0]

    def log_of(self, name: str) -> Path:
        return self._processes[name].log

    def kill(self, name: str) -> None:
        """kill -9 of the process itself; nobody is asked."""
        os.kill(self._processes[name].pid, signal.SIGKILL)

    def check_alive(self, revive: Container[str] = ()) -> dict[str, str]:
        """Raises `StackError`, with the end of its log, when one of our processes has ended, the servers' included. One named in
        ``revive`` that a signal has ended, as in kill -9, is started again instead; which signal, by name of those."""
        self.stack.check_alive()
        revived = {}
        for name, process in tuple(self._processes.items()):
            try:
                process.check_alive()
            except StackError:
                if not (process.killed and name in revive):
                    raise
                process.stop()
                self._spawn(name, *self._plans[name])
                revived[name] = process.killed
        return revived

    def _metrics(self, name: str) -> dict[str, str]:
        """RUNFOLD_METRICS_PORT is one process's own here: the first takes it, each further one the next; again, the same."""
        if not self.settings.metrics_port:
            return {}
        port = self.metrics_ports.setdefault(name, self.settings.metrics_port + len(self.metrics_ports))
        return {"RUNFOLD_METRICS_PORT": str(port)}

    def _spawn(self, name: str, words: list[str], environment: Mapping[str, str] = {}) -> GuardedProcess:
        log = self.root / f"{name}.log"
        if name not in self._processes:  # what one that was killed has said belongs to the same story
            with keeping(self.root):
                log.unlink(missing_ok=True)
        self._plans[name] = words, environment
        given = [f"{key}={value}" for key, value in {**self._environment, **environment}.items()]
        command = ["/usr/bin/env", *given, sys.executable, "-P", *words]  # -P: no file of the user's hides a module of ours
        self._processes[name] = GuardedProcess(command, Path.cwd(), log, signal.SIGTERM, self._lock)
        return self._processes[name]

    def _stop_all(self) -> None:
        for process in reversed(self._processes.values()):
            process.stop()


def wait_for(what: str, look: Callable[[], T | None], seconds: float = START_SECONDS) -> T:
    """The first answer of ``look`` that is neither None nor false."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise StackError(f"expected {what} within {seconds:.0f} s, and it did not come")
        time.sleep(0.02)
    return found
