"""The projector: reads the log, writes the tables, for ever. Plain threads.

A *session* is one connection to the database and one to the log. It begins with what the tables say and ends with the first
error of either; then the next begins. Nothing is kept between sessions: no error can spoil the next one.

Several projectors may run: one leads (an advisory lock of its database session), the others stand by and take over when that
session is gone. Should two lead after all, the compare-and-set of the offsets lets only one of them write.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from threading import Event

from runfold.core.errors import LogError, TopicMismatch
from runfold.core.events import Delivery
from runfold_projector.batch import Batch, Position
from runfold_projector.lag import Lag
from runfold_projector.partition import Partition
from runfold_projector.ports import Observer, OpenSource, Silence, Source
from runfold_projector.stable import StableOffsets
from runfold_projector.store import StoreError, Writer

POLL = 0.2  # seconds; also how soon `stop` is heard
PACE = 0.02  # seconds between transactions while records trickle: bounds what the projector costs the machine
BUSY = 1000  # records in one transaction, from which on there is no such pause
STAND_BY = 0.5  # seconds between two looks whether the leader is gone
BEHIND_SECONDS = 30.0  # older tables are not what a projector is there for
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds between sessions


class Projector:
    """``run`` blocks; ``lag``, ``stable`` and ``troubles`` are for other threads."""

    def __init__(self, open_source: OpenSource, open_writer: Callable[[], Writer], observer: Observer | None = None) -> None:
        self._open_source, self._open_writer = open_source, open_writer
        self._observer = observer or Silence()
        self._delay = FIRST_DELAY
        self.lag, self.stable = Lag(), StableOffsets()

    def troubles(self) -> Mapping[str, str]:
        """Why it is not ready; empty while the tables are fresh, or are another projector's to keep. From any thread."""
        seconds = self.lag.seconds
        return {"tables": f"not known to show the log of the last {seconds:.0f} s"} if seconds > BEHIND_SECONDS else {}

    def run(self, stop: Event) -> None:
        """Project until ``stop`` is set. Raises `ConfigError` and `TopicMismatch`, which waiting does not cure."""
        while not stop.is_set():
            try:
                self._session(stop)
            except (StoreError, LogError) as error:
                self._observer.retrying(error, self._delay)
                stop.wait(self._delay)
                self._delay = min(self._delay * 2, LONGEST_DELAY)

    def _session(self, stop: Event) -> None:
        with closing(self._open_writer()) as writer:
            if self._lead(writer, stop):
                with closing(self._open_source()) as source:
                    self._project(writer, source, stop)

    def _lead(self, writer: Writer, stop: Event) -> bool:
        """Wait for the lead. False: ``stop`` was set first."""
        while not writer.lead():
            self._observer.leading(False)
            self.lag.none()
            self.stable.none()
            if stop.wait(STAND_BY):
                return False
        self._observer.leading(True)
        return True

    def _project(self, writer: Writer, source: Source, stop: Event) -> None:
        partitions = _recover(writer, source)
        while not stop.is_set():
            batch = _fold(partitions, source.poll(POLL))
            if batch.moves:
                self._write(writer, batch)
                if batch.taken_over:
                    writer.suspend_lost(source.beginnings(batch.taken_over))
            else:
                writer.keep_alive()
            self._look(source)
            if batch.moves and batch.records < BUSY:
                stop.wait(PACE)

    def _look(self, source: Source) -> None:
        heard_at, ends, reached = source.heard_at, source.ends(), source.reached()  # in this order: ends must not be older
        self.lag.look(ends, reached, heard_at)
        self.stable.look(ends, reached, time.monotonic())

    def _write(self, writer: Writer, batch: Batch) -> None:
        began = time.monotonic()
        writer.write(batch)
        self._observer.written(batch.records, batch.rows, time.monotonic() - began)
        for why, records in batch.ignored.items():
            self._observer.ignored(why, records)
        for problem, records in batch.problems.items():
            self._observer.unreadable(problem, records)
        self._delay = FIRST_DELAY


def _recover(writer: Writer, source: Source) -> Mapping[int, Partition]:
    """The partitions as the tables have them, and the source on its way from where their folds must begin."""
    stored = writer.positions(source.partitions)
    if len(stored) != source.partitions:
        raise TopicMismatch(
            f"expected the {len(stored)} partitions that the tables know, the topic has {source.partitions}: partitions part "
            "runs from their records when their number changes; project another topic into another schema"
        )
    partitions = {position.partition: Partition(position) for position in stored}
    source.assign({number: partition.low for number, partition in partitions.items()})
    _check_ends(stored, source.ends())
    writer.suspend_lost(source.beginnings(partitions))
    return partitions


def _check_ends(stored: Sequence[Position], ends: Mapping[int, int]) -> None:
    """The log must hold what the tables were made from: else its next records would be taken for known ones."""
    for position in stored:
        if ends[position.partition] < position.next_offset:
            raise LogError(
                f"partition {position.partition}: the tables have come to offset {position.next_offset}, the log ends at "
                f"{ends[position.partition]}: it has lost records or is another log; if so, project it into another schema"
            )


def _fold(partitions: Mapping[int, Partition], deliveries: Sequence[Delivery]) -> Batch:
    batch = Batch()
    for delivery in deliveries:
        partitions[delivery.partition].apply(delivery, batch)
    for number in {delivery.partition for delivery in deliveries}:
        partitions[number].close(batch)
    return batch
