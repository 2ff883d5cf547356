"""Kafka's start-up archive: classes as the JVM had them after loading, so that the next start takes 1.2 s and not 3.

It fits one build of Java and one class path; one that does not fit costs a warning in the log. It is never recorded on the way
of a first use, which that would slow down by 12 s: whoever starts many brokers calls `runfold.local.train.train` once.
"""

from collections.abc import Sequence
from pathlib import Path

from runfold.local.jars import KafkaJars
from runfold.local.java import Java

C1 = "-XX:TieredStopAtLevel=1"  # the quick compiler only: half the CPU of a start without an archive


def file(jars: KafkaJars, java: Java) -> Path:
    """Where the archive for this Java is, or would be: an AOT cache from Java 25 on, class data sharing before."""
    return jars.directory / f"start-{java.build}.{'aot' if java.major >= 25 else 'jsa'}"


def options(archive: Path) -> Sequence[str]:
    """What tells the JVM to start quickly, with the archive where it exists."""
    if not archive.exists():
        return [C1]
    return [f"-XX:AOTCache={archive}"] if archive.suffix == ".aot" else [C1, f"-XX:SharedArchiveFile={archive}"]


def recording(archive: Path) -> str:
    """What tells the JVM to write the archive as it ends."""
    return f"-XX:{'AOTCacheOutput' if archive.suffix == '.aot' else 'ArchiveClassesAtExit'}={archive}"
