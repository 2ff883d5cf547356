"""How fast a partition lane can commit: a closed loop on a real broker, nothing of Runfold's engine in it.

Each run always has one event waiting. A lane (one transactional producer per partition) commits whatever waits for its partition
in one transaction, offsets included, and begins the next when the last record of the one before was read back. This is the bare
metal that benchmarks/engine.py is held against.

    ./dev python benchmarks/lane.py --bootstrap HOST:PORT [--partitions 4] [--runs 64] [--seconds 5]
"""

import argparse
import json
import os
import threading
import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PAYLOAD = b"x" * 600
WARM_SECONDS = 1.5


class Lane:
    """Group commit for one partition. `submit` and `echoed` from any thread, `work` in the lane's own."""

    def __init__(self, bootstrap: str, topic: str, partition: int, proof: bytes) -> None:
        self.topic, self.partition, self.proof = topic, partition, proof
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench.{topic}.{partition}",
                "linger.ms": 0,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 50,
            }
        )
        self.ready = threading.Condition()
        self.waiting: list[int] = []
        self.in_flight = 0

    def submit(self, run: int) -> None:
        with self.ready:
            self.waiting.append(run)
            self.ready.notify()

    def echoed(self) -> None:
        with self.ready:
            self.in_flight -= 1
            self.ready.notify()

    def work(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            with self.ready:
                if not self.waiting or self.in_flight > 0:
                    self.ready.wait(0.1)
                    continue
                batch, self.waiting = self.waiting, []
                self.in_flight += len(batch)
            self.producer.begin_transaction()
            for run in batch:
                self.producer.produce(self.topic, PAYLOAD, str(run), partition=self.partition)
            offset = TopicPartition(self.topic, self.partition, 1, metadata="low=1")
            self.producer.send_offsets_to_transaction([offset], self.proof, 5)
            self.producer.commit_transaction(5)


def measure(bootstrap: str, partitions: int, runs: int, seconds: float) -> dict[str, float]:
    """Cycles per second, and the cycle of one run in ms."""
    topic = f"bench-lane-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)
    seat = _seat(bootstrap, topic, partitions)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    lanes = [Lane(bootstrap, topic, number, seat.consumer_group_metadata()) for number in range(partitions)]
    for lane in lanes:
        lane.producer.init_transactions(20)
    stopped = threading.Event()
    for lane in lanes:
        threading.Thread(target=lane.work, args=(stopped,), daemon=True).start()
    cycles = _loop(reader, lanes, runs, seconds)
    stopped.set()
    return {"per_s": round(len(cycles) / seconds), **percentiles(cycles)}


def _seat(bootstrap: str, topic: str, partitions: int) -> Consumer:
    seat = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{os.getpid()}",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    seat.subscribe([topic])
    while len(seat.assignment()) < partitions:
        seat.poll(0.1)
    seat.pause(seat.assignment())
    return seat


def _loop(reader: Consumer, lanes: list[Lane], runs: int, seconds: float) -> list[float]:
    cycles: list[float] = []
    since = {run: time.perf_counter() for run in range(runs)}
    for run in range(runs):
        lanes[run % len(lanes)].submit(run)
    warm = time.perf_counter() + WARM_SECONDS
    while (now := time.perf_counter()) < warm + seconds:
        message = reader.poll(0.05)
        if message is None or message.error():
            continue
        run, lane = int(message.key() or b""), lanes[message.partition() or 0]
        if now >= warm:
            cycles.append(now - since[run])
        since[run] = now
        lane.echoed()
        lane.submit(run)
    return cycles


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50 and p99 in ms."""
    ordered = sorted(seconds) or [0.0]
    return {f"p{p}_ms": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)] * 1000, 2) for p in (50, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5)
    words = parser.parse_args()
    print(json.dumps(measure(words.bootstrap, words.partitions, words.runs, words.seconds)), flush=True)
    os._exit(0)  # the lanes' producers are not worth waiting for


if __name__ == "__main__":
    main()
