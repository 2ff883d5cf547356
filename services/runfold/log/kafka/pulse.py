"""Whether the brokers answer, asked now and then: of a log that is still, a fetch does not tell.

A consumer whose broker has fallen silent gets what it gets of an empty log: nothing. Only a question that must be answered tells
the two apart: where the log ends. It is asked on a thread and a connection of its own: no record ever waits for the answer.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Event, Thread

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from runfold.config import Settings
from runfold.log.kafka import client

START_SECONDS = 1.0  # before the first question: a worker that takes over has other clients to make first
PULSE_SECONDS = 0.5  # between an answer and the next question
ANSWER_SECONDS = 2.0  # then it is asked again
AMISS_SECONDS = 5.0  # between two questions that could not be asked
_log = logging.getLogger("runfold.kafka")


class Pulse:
    """Asks from now on, until `close`. ``heard_at`` and ``ends`` may be read from any thread; who reads both, reads that first.

    ``partitions``: whose leaders have to answer, all of them; called on the pulse's thread. None: any broker does."""

    def __init__(self, settings: Settings, partitions: Callable[[], Iterable[int]]) -> None:
        self._topic, self._partitions = settings.topic, partitions
        self._make = partial(client.make, Consumer, client.offsets(settings))
        self._consumer: Consumer | None = None
        self._ended = Event()
        self.ends: Mapping[int, int] = {}  # by partition, as of the last answer; what is not committed counts
        self.heard_at = time.monotonic()  # when the last question was asked that was answered, in seconds of CLOCK_MONOTONIC
        Thread(target=self._run, name="runfold-pulse", daemon=True).start()

    def close(self) -> None:
        """Does not wait for the broker."""
        self._ended.set()

    def _run(self) -> None:
        self._ended.wait(START_SECONDS)
        while not self._ended.wait(self._ask()):
            pass
        if self._consumer is not None:
            self._consumer.close()

    def _ask(self) -> float:
        """Once. Seconds until the next time: whatever is amiss, it is not asked for the last time."""
        try:
            self._question()
        except KafkaException:
            pass  # that is an answer too: none
        except Exception:
            _log.exception("the brokers could not be asked whether they answer, so they count as silent; asking again")
            return AMISS_SECONDS
        return PULSE_SECONDS

    def _question(self) -> None:
        asked_at = time.monotonic()
        if self._consumer is None:
            self._consumer = self._make()
        if places := [TopicPartition(self._topic, partition, OFFSET_END) for partition in self._partitions()]:
            answers = self._consumer.offsets_for_times(places, ANSWER_SECONDS)
            if any(answer.error for answer in answers):
                return
            self.ends = {answer.partition: answer.offset for answer in answers}
        else:
            self._consumer.list_topics(self._topic, ANSWER_SECONDS)
        self.heard_at = asked_at
