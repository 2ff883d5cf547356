"""A log as files: a directory with one file per partition, a record a line, and a manifest that says what it is.

A line is ``{"partition", "offset", "timestamp", "key", "type", "value"}``: the value in base64, in single-object encoding, so
that it can be read without the topic's registry. A record that could not be read has ``problem`` and ``detail`` too, and its own
bytes.
A file has its name only once it is complete, and the manifest is written last: where it is, everything is.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR
from types import TracebackType
from typing import Any, BinaryIO, Self

from runfold.core.errors import RunfoldError
from runfold.core.events import Delivery, LeaseAcquired, Problem, Record, Unreadable
from runfold.log.codec import Codec, record_type
from runfold.log.wire import RawRecord, key_of, read

MANIFEST = "manifest.json"
FORMAT = 1


class ExportError(RunfoldError):
    """An exported log that is not there, not whole, or not one of ours."""


@dataclass(slots=True)
class Part:
    """The file of one partition. ``start``: where the log began when it was exported; 0 is its very beginning."""

    file: str
    partition: int
    start: int
    records: int = 0
    runs: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """``partitions`` is how many the topic has; those without a record have no file."""

    topic: str
    partitions: int
    files: list[Part]
    format: int = FORMAT


# ---- writing


@dataclass(slots=True)
class _Open:
    part: Part
    out: BinaryIO
    digest: Any = field(default_factory=sha256)
    runs: set[str] = field(default_factory=set)


class Export:
    """Context manager: `write` what is to be exported; `finish` makes it whole. Without that nothing is left behind.

    Raises `ExportError`: there is an export already, or the directory cannot be written to.
    """

    def __init__(self, to: Path, topic: str, starts: Mapping[int, int]) -> None:
        self._to, self._topic, self._starts = to, topic, starts
        self._codec = Codec()
        self._open: dict[int, _Open] = {}

    def __enter__(self) -> Self:
        with _writing(self._to):
            if (self._to / MANIFEST).exists():
                raise ExportError(f"{self._to} holds an export already: give a directory without a {MANIFEST}")
            self._to.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for open_ in self._open.values():
            with suppress(OSError):  # of a full disk: it was said when it was met, and the descriptor is free all the same
                open_.out.close()
            _unfinished(self._to / open_.part.file).unlink(missing_ok=True)

    def write(self, delivery: Delivery) -> None:
        """Deliveries of a partition come in offset order."""
        line = (json.dumps(to_json(delivery, self._codec)) + "\n").encode()
        with _writing(self._to):
            open_ = self._open.get(delivery.partition) or self._begin(delivery.partition)
            open_.out.write(line)
        open_.digest.update(line)
        open_.part.records += 1
        if isinstance(delivery, Record) and not isinstance(delivery.event, LeaseAcquired):
            open_.runs.add(delivery.event.run_id)

    def _begin(self, partition: int) -> _Open:
        part = Part(f"partition-{partition:04}.jsonl", partition, self._starts[partition])
        self._open[partition] = open_ = _Open(part, _unfinished(self._to / part.file).open("wb"))
        return open_

    @property
    def runs(self) -> set[str]:
        """Ids of the runs that were written."""
        return set().union(*(open_.runs for open_ in self._open.values()))

    def finish(self) -> Manifest:
        """Give the files their names, and say so in the manifest."""
        with _writing(self._to):
            return self._finish()

    def _finish(self) -> Manifest:
        for open_ in self._open.values():
            open_.part.runs, open_.part.sha256 = len(open_.runs), open_.digest.hexdigest()
            _put(self._to / open_.part.file, open_.out)
        parts = [self._open[partition].part for partition in sorted(self._open)]
        manifest = Manifest(self._topic, len(self._starts), parts)
        with _unfinished(self._to / MANIFEST).open("wb") as out:
            out.write((json.dumps(asdict(manifest), indent=1) + "\n").encode())
            _put(self._to / MANIFEST, out)
        return manifest


@contextmanager
def _writing(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(f"{to} cannot be written to: {error.strerror}; choose another directory") from None


def to_json(delivery: Delivery, codec: Codec) -> dict[str, Any]:
    """One line. A key that is no UTF-8 keeps its bytes as lone surrogates."""
    where = {"partition": delivery.partition, "offset": delivery.offset, "timestamp": delivery.timestamp}
    if isinstance(delivery, Unreadable):
        key = None if delivery.key is None else delivery.key.decode("utf-8", "surrogateescape")
        why = {"problem": delivery.problem, "detail": delivery.detail}
        return {**where, "key": key, "type": None, "value": _base64(delivery.value), **why}
    event = delivery.event
    kind = record_type(event).decode()
    return {**where, "key": key_of(event).decode(), "type": kind, "value": _base64(codec.encode(event))}


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _unfinished(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


def _put(file: Path, out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())
    out.close()
    _unfinished(file).rename(file)


# ---- reading


class ExportedLog:
    """A directory that `Export` made, or one file of it, or any file of such lines when ``partitions`` says how many there are.

    Raises `ExportError`, also when the manifest says another number than ``partitions``.
    """

    def __init__(self, path: Path, partitions: int | None = None) -> None:
        self.path, self._codec = path, Codec()
        whole = _is_directory(path)
        directory = path if whole else path.parent
        manifest = _manifest(directory / MANIFEST)
        if manifest is None and (whole or partitions is None):
            advice = "" if whole else "; without one, say how many partitions the topic has (verify-log --partitions)"
            raise ExportError(f"expected a {MANIFEST} in {directory}{advice}")
        parts = {directory / part.file: part for part in manifest.files} if manifest else {}
        if manifest and partitions not in (None, manifest.partitions) and (whole or path in parts):
            said = f"{directory / MANIFEST} says that the topic has {manifest.partitions} partitions"
            raise ExportError(f"{said}, --partitions says {partitions}: leave it out")
        self.partitions = partitions or (manifest.partitions if manifest else 0)
        self._files: dict[Path, Part | None] = {**parts} if whole else {path: parts.get(path)}

    @property
    def starts(self) -> dict[int, int]:
        """Where the log of a partition began, as far as a manifest says so."""
        return {part.partition: part.start for part in self._files.values() if part}

    def deliveries(self, only: str = "") -> Iterator[Delivery]:
        """All records, file by file; those of one run with ``only`` its id. A file is held to its manifest at its end."""
        for file, part in self._files.items():
            yield from self._of(file, part, only.encode())

    def _of(self, file: Path, part: Part | None, only: bytes) -> Iterator[Delivery]:
        digest = sha256()
        try:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    digest.update(line)
                    if only in line:
                        yield self._delivery(line, f"{file}, line {number}")
        except OSError as error:
            raise ExportError(f"{file} cannot be read: {error.strerror}") from None
        if part is not None and digest.hexdigest() != part.sha256:
            raise ExportError(f"{file} is not what its manifest says: SHA-256 {digest.hexdigest()}, expected {part.sha256}")

    def _delivery(self, line: bytes, where: str) -> Delivery:
        try:
            return self._read(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{where}: expected a record of an exported log, got {line[:80]!r} ({error!r})") from None

    def _read(self, said: dict[str, Any]) -> Delivery:
        key = None if said["key"] is None else said["key"].encode("utf-8", "surrogateescape")
        value = None if said["value"] is None else b64decode(said["value"], validate=True)
        place = int(said["partition"]), int(said["offset"]), int(said["timestamp"])
        if "problem" in said:
            return Unreadable(*place, key, value, Problem(said["problem"]), str(said["detail"]))
        return read(RawRecord(*place, key, value, said["type"].encode()), self._codec, self.partitions)


def _is_directory(path: Path) -> bool:
    try:
        return S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise ExportError(f"there is no {path}") from None
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None


def _manifest(file: Path) -> Manifest | None:
    try:
        said = json.loads(file.read_bytes())
        if said["format"] != FORMAT:
            raise ExportError(f"{file} is of format {said['format']}, this build reads {FORMAT}")
        if said["partitions"] < 1:
            raise ValueError(f"a topic of {said['partitions']} partitions")
        return Manifest(str(said["topic"]), int(said["partitions"]), [Part(**part) for part in said["files"]])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{file} is no manifest of an exported log: {error!r}") from None
