"""Kafka and PostgreSQL together: what `runfold dev`, `runfold demo` and the tests stand on."""

from pathlib import Path
from typing import Self

from runfold.local.jars import KafkaJars
from runfold.local.kafka import Kafka
from runfold.local.postgres import Postgres
from runfold.local.progress import Progress, silent


class LocalStack:
    """Context manager; inside the block both servers answer at `bootstrap` and `dsn`.

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
        self._bootstrap, self._dsn, self._progress = bootstrap, dsn, progress

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap if self.kafka else self._bootstrap

    @property
    def dsn(self) -> str:
        return self.postgres.dsn if self.postgres else self._dsn

    def __enter__(self) -> Self:
        servers = [server for server in (self.kafka, self.postgres) if server]
        try:
            for server in servers:  # the second is made while the first is on its way
                server.launch()
            for done, server in enumerate(servers):
                self._progress("starting", done, len(servers))
                server.wait()
            self._progress("starting", len(servers), len(servers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.postgres, self.kafka):
            if server:
                server.stop()
