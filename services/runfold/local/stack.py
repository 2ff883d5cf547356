"""Kafka and PostgreSQL together: what `runfold dev`, `runfold demo` and the tests stand on."""

import contextlib
from pathlib import Path
from typing import Self

from runfold.local.jars import KafkaJars
from runfold.local.kafka import Kafka
from runfold.local.postgres import Postgres
from runfold.local.progress import Progress, silent


class LocalStack:
    """Context manager; inside the block both servers answer, at `bootstrap` and `dsn`.

    Data, ports, logs and pids live under `root`; the next start finds the same. What is given (`bootstrap`, `dsn`) is used as it
    is and not started; then `kafka` or `postgres` is None. Ports that are 0 are chosen. However this process ends, no server
    outlives it. StackError says what is missing."""

    def __init__(
        self,
        root: Path,
        *,
        bootstrap: str = "",
        dsn: str = "",
        kafka_port: int = 0,
        postgres_port: int = 0,
        jars: KafkaJars | None = None,
        progress: Progress = silent,
    ) -> None:
        self.kafka = None if bootstrap else Kafka(root / "kafka", kafka_port, jars=jars, progress=progress)
        self.postgres = None if dsn else Postgres(root / "postgres", postgres_port, progress)
        self._servers = [server for server in (self.kafka, self.postgres) if server]
        self._bootstrap, self._dsn, self._progress = bootstrap, dsn, progress

    @property
    def bootstrap(self) -> str:
        """host:port[,host:port]"""
        return self.kafka.bootstrap if self.kafka else self._bootstrap

    @property
    def dsn(self) -> str:
        return self.postgres.dsn if self.postgres else self._dsn

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as each:  # the others too when one of them fails
            for server in self._servers:
                each.callback(server.stop)

    def check_alive(self) -> None:
        """StackError, with the end of its log, when a server of ours has ended."""
        for server in self._servers:
            server.process.check_alive()

    def _start(self) -> None:
        for server in self._servers:  # the second makes its data while the first is on its way
            server.launch()
        what = "starting " + " and ".join(server.title for server in self._servers)
        for done, server in enumerate(self._servers):
            self._progress(what, done, len(self._servers))
            server.wait()
            self._progress(what, done + 1, len(self._servers))
