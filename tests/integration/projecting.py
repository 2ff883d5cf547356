"""A projector in the test's own process: real tables, and a log that stands where the test wants it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread

from runfold.core.errors import LogError
from runfold.core.events import Delivery
from runfold_projector.ports import Observer
from runfold_projector.service import Projector
from runfold_projector.store import Writer
from tests.logs import ScriptedLog

PATIENCE = 20.0  # seconds that a test waits for what must come
TOPIC = "runs"


class Topic:
    """The logs of all partitions, as far as `publish` has shown them. Any thread may publish."""

    def __init__(self, *logs: ScriptedLog, shown: bool = True) -> None:
        self.logs = logs
        self._changed = Condition()
        self._shown = [len(log.deliveries) if shown else 0 for log in logs]
        self._failure: LogError | None = None
        self.beginnings: dict[int, int] = {}  # by partition: what retention has left; 0 where it says nothing

    def publish(self, partition: int = 0, count: int | None = None) -> None:
        """Show everything that the log of ``partition`` holds by now, or its first ``count`` deliveries. What was shown stays."""
        with self._changed:
            wanted = len(self.logs[partition].deliveries) if count is None else count
            self._shown[partition] = max(self._shown[partition], wanted)
            self._changed.notify_all()

    def fail(self, error: LogError) -> None:
        """Let the next poll raise ``error``, once."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def source(self, at_once: int = 10_000) -> "MemorySource":
        return MemorySource(self, at_once)

    def take(self, offsets: dict[int, int], at_once: int, timeout: float) -> list[Delivery]:
        with self._changed:
            self._changed.wait_for(lambda: self._failure or any(map(self._left, offsets.items())), timeout)
            if self._failure is not None:
                error, self._failure = self._failure, None
                raise error
            return [delivery for item in offsets.items() for delivery in self._left(item)][:at_once]

    def ends(self) -> dict[int, int]:
        with self._changed:
            shown = [log.deliveries[: self._shown[partition]] for partition, log in enumerate(self.logs)]
            return {partition: deliveries[-1].offset + 1 if deliveries else 0 for partition, deliveries in enumerate(shown)}

    def left(self, offsets: Mapping[int, int]) -> int:
        with self._changed:
            return sum(len(self._left(item)) for item in offsets.items())

    def _left(self, item: tuple[int, int]) -> list[Delivery]:
        partition, offset = item
        shown = self.logs[partition].deliveries[: self._shown[partition]]
        return [delivery for delivery in shown if delivery.offset >= offset]


class MemorySource:
    """A `runfold_projector.ports.Source` over a `Topic`."""

    def __init__(self, topic: Topic, at_once: int) -> None:
        self._topic, self._at_once = topic, at_once
        self.partitions = len(topic.logs)
        self._offsets: dict[int, int] = {}

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._offsets = dict(offsets)

    def poll(self, timeout: float) -> Sequence[Delivery]:
        found = self._topic.take(self._offsets, self._at_once, timeout)
        for delivery in found:
            self._offsets[delivery.partition] = delivery.offset + 1
        return found

    def reached(self) -> Mapping[int, int]:
        return dict(self._offsets)

    def ends(self) -> Mapping[int, int]:
        return self._topic.ends()

    @property
    def heard_at(self) -> float:
        return time.monotonic()

    def beginnings(self, partitions: Iterable[int]) -> Mapping[int, int]:
        return {partition: self._topic.beginnings.get(partition, 0) for partition in partitions}

    def close(self) -> None:
        pass


@contextmanager
def projecting(
    topic: Topic,
    dsn: str,
    observer: Observer | None = None,
    at_once: int = 10_000,
    open_writer: Callable[[], Writer] | None = None,
) -> Iterator[Projector]:
    """A running projector, stopped at the end of the block; what it dies of fails the test."""
    projector = Projector(lambda: topic.source(at_once), open_writer or (lambda: Writer.open(dsn, TOPIC)), observer)
    stop, died = Event(), list[BaseException]()

    def run() -> None:
        try:
            projector.run(stop)
        except BaseException as error:
            died.append(error)

    thread = Thread(target=run, name="projector")
    thread.start()
    try:
        yield projector
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the projector did not stop"
    assert not died, died


def project_all(topic: Topic, dsn: str, at_once: int = 10_000) -> None:
    """Bring the tables level with what the topic shows."""
    with projecting(topic, dsn, at_once=at_once):
        wait_until_level(topic, dsn)


def wait_until_level(topic: Topic, dsn: str, patience: float = PATIENCE) -> None:
    """Wait until the tables have everything that the topic shows."""
    with probe(dsn) as writer:
        until(lambda: topic.left(reached(writer, len(topic.logs))) == 0, patience)


def reached(writer: Writer, partitions: int) -> dict[int, int]:
    """The next offset of each partition, by the tables."""
    return {position.partition: position.next_offset for position in writer.positions(partitions)}


@contextmanager
def probe(dsn: str) -> Iterator[Writer]:
    """A writer that does not lead."""
    writer = Writer.open(dsn, TOPIC)
    try:
        yield writer
    finally:
        writer.close()


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Look again and again: a database tells nobody that it has changed."""
    deadline, pause = time.monotonic() + patience, Event()
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        pause.wait(0.005)
