"""Whether the brokers answer, asked now and then: of a log that is still, a fetch does not tell.

A consumer whose broker has fallen silent gets what it gets of an empty log: nothing. Only a question that must be answered tells
the two apart. It is asked on a thread and a connection of its own, so that no record ever waits for the answer.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from threading import Event, Thread

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from runfold.config import Settings
from runfold.log.kafka import client

START_SECONDS = 1.0  # before the first question: a worker that takes over has other clients to make first
PULSE_SECONDS = 0.5  # between an answer and the next question
ANSWER_SECONDS = 2.0  # then it is asked again


class Pulse:
    """Asks from now on, until `close`. ``heard_at`` may be read from any thread.

    ``partitions``: whose leaders have to answer, all of them; called on the pulse's thread. None: any broker does."""

    def __init__(self, settings: Settings, partitions: Callable[[], Iterable[int]]) -> None:
        self._topic, self._partitions = settings.topic, partitions
        self._make = partial(client.make, Consumer, client.offsets(settings))
        self._ended = Event()
        self.heard_at = time.monotonic()  # when the last question was asked that was answered, in seconds of CLOCK_MONOTONIC
        Thread(target=self._run, name="runfold-pulse", daemon=True).start()

    def close(self) -> None:
        """Does not wait for the broker."""
        self._ended.set()

    def _run(self) -> None:
        if self._ended.wait(START_SECONDS):
            return
        consumer = self._make()
        while not self._ended.is_set():
            asked_at = time.monotonic()
            if self._answered(consumer):
                self.heard_at = asked_at
            self._ended.wait(PULSE_SECONDS)
        consumer.close()

    def _answered(self, consumer: Consumer) -> bool:
        places = [TopicPartition(self._topic, partition, OFFSET_END) for partition in self._partitions()]
        try:
            if not places:
                consumer.list_topics(self._topic, ANSWER_SECONDS)
                return True
            return all(place.error is None for place in consumer.offsets_for_times(places, ANSWER_SECONDS))
        except KafkaException:
            return False
