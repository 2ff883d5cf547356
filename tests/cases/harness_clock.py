"""A worker process on a machine whose clock is wrong. Started by `main`, with the words of `runfold worker`.

Python's clocks of the day are off by ``CASES_CLOCK_OFF`` seconds, and with them the time that a producer writes into its records.
What counts durations is not: a wrong time of day leaves it alone.
"""

import os
import time
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from confluent_kafka import Producer

from runfold import cli
from runfold.cli.wiring import keeper, worker
from runfold.cli.wiring.keeper import WorkerSpec

OFF = "CASES_CLOCK_OFF"
CLOCK = ("-c", "from tests.cases.harness_clock import main; main()")

_right_time, _right_time_ns = time.time, time.time_ns


def seconds_off() -> float:
    return float(os.environ[OFF])


def wrong_time() -> float:
    return _right_time() + seconds_off()


def wrong_time_ns() -> int:
    return _right_time_ns() + int(seconds_off() * 1e9)


class WrongProducer(Producer):
    """Stamps its records by the wrong clock, as the client library of such a machine does."""

    def produce(self, *args: Any, **words: Any) -> None:
        words["timestamp"] = int(wrong_time() * 1000)
        super().produce(*args, **words)


def work(pipe: Connection, spec: WorkerSpec) -> None:
    with (
        mock.patch.object(time, "time", wrong_time),
        mock.patch.object(time, "time_ns", wrong_time_ns),
        mock.patch("runfold.log.kafka.appender.Producer", WrongProducer),
    ):
        worker.work(pipe, spec)


def main() -> None:
    with mock.patch.object(keeper, "WORKER", __name__):
        cli.main()
