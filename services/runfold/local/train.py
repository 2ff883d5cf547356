"""Recording Kafka's start-up archive: see `runfold.local.archive` for what it is good for."""

import os
import tempfile
from pathlib import Path

from runfold.local import archive
from runfold.local.jars import KafkaJars
from runfold.local.java import find_java
from runfold.local.kafka import Kafka
from runfold.local.progress import Progress, silent


def train(jars: KafkaJars, progress: Progress = silent) -> Path:
    """Record the archive, once per build of Java (about 12 s); return its file. StackError if Kafka cannot be started."""
    file = archive.file(jars, find_java())
    if not file.exists():
        progress("recording a start-up archive", 0, 1)
        made = file.with_name(f"{os.getpid()}-{file.name}")
        with tempfile.TemporaryDirectory() as scratch, Kafka(Path(scratch), jars=jars, jvm=[archive.recording(made)]):
            pass  # the JVM writes the archive as it ends
        made.rename(file)
        progress("recording a start-up archive", 1, 1)
    return file
