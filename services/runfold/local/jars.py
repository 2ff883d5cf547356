"""Kafka's own jars: 45 files named in ``kafka-jars.lock``, fetched once, checked against their sha256 at every start.

jgo only downloads: it knows the public registry, so that we name none. It writes in place and verifies nothing that we could
rely on, so each jar is fetched into a scratch directory, checked here and renamed.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from runfold.config import Settings
from runfold.core.errors import StackError
from runfold.local.places import absolute
from runfold.local.progress import Progress, silent
from runfold.local.wheels import INSTALL

SIZE_MB = 43
ELSEWHERE = "set RUNFOLD_CACHE_DIR to another directory"
LOCK = resources.files("runfold.local").joinpath("kafka-jars.lock").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock; `coordinate` is group:artifact:version."""

    sha256: str
    coordinate: str

    @property
    def name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


LOCKED = [Jar(*line.split()) for line in LOCK.splitlines() if not line.startswith("#")]


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """The jars under the directory `cache`; `mirror` is the URL of a Maven repository to use instead of the public one.

    Both are by default what RUNFOLD_CACHE_DIR and RUNFOLD_MAVEN_MIRROR say."""

    cache: Path = field(default_factory=lambda: Settings().cache_dir)
    mirror: str = field(default_factory=lambda: Settings().maven_mirror)

    @property
    def directory(self) -> Path:
        """One per lock: another version of Runfold may want other jars. StackError: `cache` is nowhere."""
        return absolute(self.cache) / f"kafka-{hashlib.sha256(LOCK.encode()).hexdigest()[:12]}"

    @staticmethod
    def _nowhere(place: Path, error: Exception) -> StackError:
        return StackError(f"cannot keep Kafka's jars in {place}: {error}: {ELSEWHERE}")

    def missing(self) -> list[Jar]:
        """What the next `fetch` has to download. StackError: nobody can look."""
        try:
            return [jar for jar in LOCKED if not (self.directory / jar.name).exists()]
        except OSError as error:
            raise self._nowhere(self.directory, error) from error

    def fetch(self, progress: Progress = silent) -> list[Path]:
        """All jars in the order of the lock, which is the class path. StackError: cannot be downloaded, or damaged."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._fetch_missing(progress)
            return [self._checked(jar) for jar in LOCKED]
        except OSError as error:
            raise self._nowhere(self.directory, error) from error

    def _fetch_missing(self, progress: Progress) -> None:
        if missing := self.missing():
            what = f"fetching Kafka ({SIZE_MB} MB, once)"
            progress(what, 0, len(missing))
            for done, _ in enumerate(self._download_all(missing), 1):
                progress(what, done, len(missing))

    def _download_all(self, jars: list[Jar]) -> Iterator[None]:
        pool = ThreadPoolExecutor(4)
        try:
            for download in as_completed([pool.submit(self._download, jar) for jar in jars]):
                yield download.result()
        finally:  # after a failure or Ctrl-C begin no further download
            pool.shutdown(cancel_futures=True)

    def _download(self, jar: Jar) -> None:
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            fetched = _from_registry(jar.coordinate, self.mirror, Path(scratch))
            _check(jar, fetched)
            fetched.replace(self.directory / jar.name)

    def _checked(self, jar: Jar) -> Path:
        file = self.directory / jar.name
        try:
            _check(jar, file)
        except StackError:
            file.unlink()
            raise
        return file


def _check(jar: Jar, file: Path) -> None:
    if (actual := hashlib.sha256(file.read_bytes()).hexdigest()) != jar.sha256:
        raise StackError(f"{jar.name}: expected sha256 {jar.sha256}, got {actual}; it was deleted: start again to fetch it anew")


def _from_registry(coordinate: str, mirror: str, into: Path) -> Path:
    try:
        from jgo.maven import MavenContext  # optional, and 0.25 s that only a download should cost
    except ImportError as error:
        raise StackError(f"{coordinate} has to be downloaded, which needs the package jgo: {INSTALL}") from error
    group, artifact, version = coordinate.split(":")
    try:
        maven = MavenContext(repo_cache=into, remote_repos={"mirror": mirror} if mirror else None)
        return Path(maven.project(group, artifact).at_version(version).artifact().resolve())
    except (OSError, RuntimeError) as error:
        raise StackError(f"cannot download {coordinate}: {error}; behind a mirror, set RUNFOLD_MAVEN_MIRROR to it") from error
