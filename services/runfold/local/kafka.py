"""A real Apache Kafka: one KRaft node, data on disk, no Docker. Its settings are in ``kafka-server.properties``.

An acknowledged record is in the page cache: kill -9 of the broker loses nothing, a power cut can. That is the honest limit of
one node.
"""

import secrets
import signal
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from runfold.local import archive, loopback
from runfold.local.jars import KafkaJars
from runfold.local.java import Java, find_java
from runfold.local.process import GuardedProcess
from runfold.local.progress import Progress, silent
from runfold.local.server import Server

HEAP = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC"]


class Kafka(Server):
    """A broker of one's own: ``with Kafka(Path("state/kafka")) as kafka: ... kafka.bootstrap``.

    `jvm`: further options for its Java."""

    name, title = "kafka", "Kafka"

    def __init__(
        self,
        home: Path,
        port: int = 0,
        *,
        jars: KafkaJars | None = None,
        progress: Progress = silent,
        jvm: Sequence[str] = (),
    ) -> None:
        super().__init__(home, port, progress)
        self._jars, self._jvm = jars or KafkaJars(), jvm

    @property
    def bootstrap(self) -> str:
        """host:port, while it runs."""
        return f"{loopback.HOST}:{self.port}"

    def _spawn(self, lock: int) -> GuardedProcess:
        java, jars = find_java(), self._jars.fetch(self._progress)
        self.port, controller = loopback.choose(self.home / "ports", [self._wanted_port, 0])
        self._write("server.properties", _packaged("kafka-server.properties").format(port=self.port, controller=controller))
        self._write("log4j2.properties", _packaged("kafka-log4j2.properties"))
        words = [*HEAP, "-Dlog4j2.configurationFile=log4j2.properties", "-cp", ":".join(map(str, jars))]
        # written last, by a rename: an interrupted format is repeated
        if not (self.home / "data" / "meta.properties").exists():
            self._format(java, words, lock)
        options = [*archive.options(archive.file(self._jars, java)), *self._jvm]
        return self._run([str(java.path), *options, *words, "kafka.Kafka", "server.properties"], self.log, lock)

    def _format(self, java: Java, words: Sequence[str], lock: int) -> None:
        self._progress("formatting Kafka's disk", 0, 1)
        cluster = "R" + secrets.token_urlsafe(16)[1:]  # the tool would take a leading "-" for an option
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties"]
        self._run([str(java.path), archive.C1, *words, *tool], self.home / "format.log", lock).finish(60)
        self._progress("formatting Kafka's disk", 1, 1)

    def _run(self, command: Sequence[str], log: Path, lock: int) -> GuardedProcess:
        return GuardedProcess(command, self.home, log, signal.SIGTERM, lock)

    def _answers(self) -> bool:
        return loopback.listening(self.port)  # it listens once it is unfenced: metadata comes within 50 ms

    def _write(self, name: str, text: str) -> None:
        (self.home / name).write_text(text)


def _packaged(name: str) -> str:
    return resources.files("runfold.local").joinpath(name).read_text("utf-8")
