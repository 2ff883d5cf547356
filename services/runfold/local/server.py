"""What Kafka and PostgreSQL have in common here: a directory, a lock on it, ports, a guarded process."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from runfold.core.errors import StackError
from runfold.local.lock import locked
from runfold.local.places import absolute
from runfold.local.process import GuardedProcess
from runfold.local.progress import Progress, silent


class Server(ABC):
    """One server whose data, ports, log and pid live under `home`. Context manager: it answers inside the block.

    `port` 0: the port of the last start, or a free one. After `stop` or `kill` it can be started again, with the same data."""

    name: ClassVar[str]  # of its files
    title: ClassVar[str]  # for people

    def __init__(self, home: Path, port: int = 0, progress: Progress = silent) -> None:
        self.home, self.port = absolute(home), port
        self.log = self.home / f"{self.name}.log"
        self._wanted_port, self._progress = port, progress
        self._process: GuardedProcess | None = None

    @abstractmethod
    def _spawn(self, lock: int) -> GuardedProcess:
        """Make the data if there is none, choose the port, start the process."""

    @abstractmethod
    def _answers(self) -> bool: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def process(self) -> GuardedProcess:
        if self._process is None:
            raise StackError(f"expected {self.title} to be running, but it was never started or has been stopped: start it first")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        """Return when the server answers. StackError says why it does not."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """The first half of `start`: return when the process is on its way."""
        self.stop()
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with locked(self.home / "lock", self._progress) as lock:  # no fork of ours shall hold it
                self._process = self._spawn(lock)
        except OSError as error:
            raise StackError(f"cannot start {self.title} in {self.home}: {error}; mend it or choose another directory") from error

    def wait(self, timeout: float = 90) -> None:
        """The second half of `start`."""
        try:
            self.process.wait_until(self._answers, timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Return when the process is gone. Harmless when there is none."""
        if self._process:
            self._process.stop()
        self._process = None

    def kill(self) -> None:
        """kill -9, as a test or a bad day does it; return when the process is gone."""
        self.process.kill()
        self._process = None
