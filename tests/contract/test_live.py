"""The contract of `runfold.ports.Live` and `runfold.ports.LiveReader`: text for eyes, off the log."""

import asyncio
import json
import time
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from confluent_kafka import Producer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from runfold.config import Settings
from runfold.log import live
from runfold.log.kafka import KafkaLive, KafkaLiveReader
from runfold.log.kafka import live as kafka_live
from runfold.log.kafka.client import live_topic
from runfold.log.live import decode, encode
from runfold.ports import LiveEnd, LiveReader, LiveText, Position
from tests.cases.harness_processes import free_port, slowness
from tests.conftest import TopicFactory
from tests.contract.log_suite import PATIENCE, World, event, names, run_on, take

SCHEMA = Path(__file__).parents[2] / "schemas" / "live" / "LiveText.avsc"
RUN = str(uuid4())


def piece(run_id: str, index: int, text: str = "", end: LiveEnd | None = None) -> LiveText:
    return LiveText(run_id, 3, 2, index, text, end)


async def read(reader: LiveReader, count: int) -> list[LiveText]:
    deadline, found = time.monotonic() + PATIENCE, list[LiveText]()
    while len(found) < count:
        assert time.monotonic() < deadline, f"expected {count} pieces, got {found}"
        found += await asyncio.to_thread(reader.read, 1)
    return found


async def test_what_was_shown_is_read_in_order_and_nothing_of_other_runs(world: World) -> None:
    shown, run_id = await world.live(), run_on(1)
    pieces = [*(piece(run_id, index, f"word {index} ") for index in range(500)), piece(run_id, 500, "", LiveEnd.COMPLETE)]
    for one in pieces:
        shown.show(one)
        shown.show(piece(run_on(1), one.index, "another run of the partition"))
    assert await read(await world.live_reader(run_id), len(pieces)) == pieces


async def test_a_reader_that_is_there_hears_what_comes_and_never_waits_longer_than_it_was_told(world: World) -> None:
    shown, run_id = await world.live(), run_on(2)
    reader = await world.live_reader(run_id)
    began = time.monotonic()
    assert await asyncio.to_thread(reader.read, 0.1) == []
    assert time.monotonic() - began < slowness()
    for index, end in enumerate((None, LiveEnd.FAILED, LiveEnd.CUT)):
        shown.show(piece(run_id, index, "schöne Grüße 👋", end))
        assert await read(reader, 1) == [piece(run_id, index, "schöne Grüße 👋", end)]


def test_a_reader_misses_nothing_that_is_shown_while_it_looks_for_its_place(
    bootstrap: str, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(bootstrap=bootstrap, topic=topic(1))
    place, first = kafka_live._place, piece(RUN, 0, "Let")

    def meanwhile(*asked: Any) -> Any:
        found = place(*asked)
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(live_topic(settings), encode(first), RUN.encode())
        assert producer.flush(PATIENCE) == 0
        return found

    monkeypatch.setattr(kafka_live, "_place", meanwhile)
    reader = KafkaLiveReader.open(settings, RUN, 0)
    assert reader is not None
    try:
        assert reader.read(PATIENCE) == [first]
    finally:
        reader.close()


async def test_live_text_is_no_part_of_the_log(world: World, proof: bytes) -> None:
    """A reader of the log knows nothing of it."""
    shown, log, run_id = await world.live(), await world.log(), run_on(0)
    for index in range(10):
        shown.show(piece(run_id, index, "x"))
    await read(await world.live_reader(run_id), 10)
    await (await log.fence(0)).append([event(run_id, "first")], Position(), proof)
    assert names(await take(await log.read(0, 0), 1)) == ["first"]
    assert names(await (await world.tail()).records(run_id, 0)) == ["first"]


async def test_without_a_side_topic_nothing_fails_and_what_is_lost_is_counted(bootstrap: str) -> None:
    """Not on the loop either: 20,000 pieces, more than the queue holds, are taken in the time that taking takes."""
    settings = Settings(bootstrap=bootstrap, topic=f"none-{uuid4().hex[:8]}")
    dropped: list[None] = []
    shown, run_id = KafkaLive(settings, lambda: dropped.append(None)), str(uuid4())
    slowest = 0.0
    for index in range(20_000):
        began = time.monotonic()
        shown.show(piece(run_id, index, "x" * 100))
        slowest = max(slowest, time.monotonic() - began)
    assert dropped
    assert slowest < slowness()
    assert await asyncio.to_thread(KafkaLiveReader.open, settings, run_id, 0) is None


async def test_without_a_broker_nothing_fails_and_little_is_held() -> None:
    settings = Settings(bootstrap=f"127.0.0.1:{free_port()}")
    dropped: list[None] = []
    shown = KafkaLive(settings, lambda: dropped.append(None))
    for index in range(20_000):
        shown.show(piece(run_on(0), index, "x" * 1000))
    assert len(dropped) > 10_000, "the queue has a bound of 8 MB"


def test_the_bytes_are_single_object_avro_that_anybody_can_read() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    value = encode(piece(RUN, 7, "hé", LiveEnd.CUT))
    assert value[:10] == b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    read_back = fastavro.schemaless_reader(BytesIO(value[10:]), schema, None)
    assert read_back == {"run_id": RUN, "seq": 3, "attempt": 2, "index": 7, "text": "hé", "end": "CUT"}


@pytest.mark.parametrize("value", [None, b"", b"rubbish", b"\xc3\x01" + bytes(8), encode(piece("r", 0, "text"))[:-4]])
def test_what_is_no_live_text_is_skipped(value: bytes | None) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(("said", "seen"), [("a\ud83d", "a�"), ("\ud83d\udc4b", "👋"), ("\udc4b", "�"), ("\x00", "\x00")])
def test_text_that_came_apart_is_shown_all_the_same(said: str, seen: str) -> None:
    found = live.decode(live.encode(piece("r", 0, said)))
    assert found is not None
    assert found.text == seen
