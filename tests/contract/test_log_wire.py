"""Where a record goes and what its key is: what every client of the topic, in whatever language, must agree on."""

from uuid import uuid4

import confluent_kafka
import pytest

from runfold.core.events import LeaseAcquired, Problem, Unreadable
from runfold.log.codec import Codec
from runfold.log.echo import Echo
from runfold.log.partitioner import partition_of
from runfold.log.wire import LONGEST_ID, RawRecord, generation, is_run_key, key_of, read
from tests.contract.log_suite import PARTITIONS, command, event, run_on


@pytest.mark.parametrize("length", range(13))
def test_the_partitioner_is_kafkas_own(length: int) -> None:
    for key in (bytes(range(length)), bytes(range(255, 255 - length, -1)), b"\x80" * length):
        for partitions in (1, 4, 12, 48):
            assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)


def test_run_ids_go_where_every_client_with_murmur2_puts_them() -> None:
    for _ in range(1000):  # K07.1
        key = str(uuid4()).encode()
        assert partition_of(key, 12) == confluent_kafka.murmur2(key, 12)
    assert partition_of(b"6f1c0a52-0000-4000-8000-000000000000", 12) == 10


def test_keys() -> None:
    assert key_of(command("run")) == b"run"
    assert key_of(LeaseAcquired(partition=7, worker="w", build="b")) == b"lease/7"


@pytest.mark.parametrize("key", ["6F1C0A52-0000-4000-8000-000000000000", "6f1c0a5200004000800000000000000", "", "lease/0", "{x}"])
def test_only_the_canonical_spelling_is_a_run_id(key: str) -> None:
    assert not is_run_key(key.encode())
    assert is_run_key(b"6f1c0a52-0000-4000-8000-000000000000")
    assert not is_run_key(b"6f1c0a52-0000-4000-8000-000000000000\n")


def test_a_proof_without_a_generation_is_nobodys() -> None:
    assert generation(b"") == generation(b"CGMDv2:") == generation(b"CGMDv2:\xff\xff\xff\xffg") == -1
    assert generation(b"CGMDv2:\x05\0\0\0g") == 5


def test_an_echo_is_taken_once_and_outlived_ones_are_forgotten() -> None:
    echo, run_id = Echo(), run_on(0)
    sent = [event(run_id, str(n)) for n in range(4)]
    old = echo.open()
    committed, lost = old.hold(sent[:2])
    new = echo.open()
    (later, last) = new.hold(sent[2:])
    assert echo.take(committed) is sent[0]
    assert echo.take(committed) is None
    assert echo.take(b"of another process:0") is None
    assert echo.take(later) is sent[2]
    assert echo.take(lost) is None, "nothing older can follow the first record of a newer lane"
    assert echo.take(last) is sent[3]


@pytest.mark.parametrize("command_id", ["", "c" * (LONGEST_ID + 1)])
def test_a_command_whose_id_no_owner_could_repeat_is_unreadable(command_id: str) -> None:
    """It comes back in CommandRejected and RunResumed: one of megabytes would stop the partition."""
    codec, run_id = Codec(), run_on(0)
    raw = RawRecord(0, 1, 2, run_id.encode(), codec.encode(command(run_id, command_id)))
    delivery = read(raw, codec, PARTITIONS)
    assert isinstance(delivery, Unreadable)
    assert delivery.problem is Problem.MALFORMED
