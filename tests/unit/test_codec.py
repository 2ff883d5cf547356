"""What is encoded comes back equal; everything else is one error, whatever the bytes."""

import dataclasses
import json
import time
import tracemalloc
from decimal import Decimal, localcontext
from io import BytesIO
from typing import Any, get_args

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runfold.core.errors import DecodeError
from runfold.core.events import (
    Event,
    Limits,
    Problem,
    RunCancelRequested,
    RunRequested,
    RunSnapshotted,
    ToolStatus,
    ToolStepFinished,
)
from runfold.core.snapshot import VERSION
from runfold.log.codec import Codec, record_type
from runfold.log.schemas import fingerprint, schema_of

from .codec_events import any_event

CODEC = Codec()
RUN = "6f1c0a52-8c1e-4b7e-9a51-0d2f6b1c7e10"
CANCEL = RunCancelRequested(run_id=RUN, command_id="c-1", requested_by="alice", detail="no longer needed")
FINISHED = ToolStepFinished(
    run_id=RUN,
    epoch=123_456,
    seq=12,
    model_seq=11,
    tool_use_id="toolu_01AbCdEfGh",
    attempt=1,
    status=ToolStatus.DONE,
    content_json=json.dumps("x" * 254),
    latency_ms=41,
)


def problem_of(value: bytes, header: bytes | None = None) -> Problem:
    with pytest.raises(DecodeError) as caught:
        CODEC.decode(value, header)
    return caught.value.problem


@given(any_event())
@settings(max_examples=400, deadline=None)
def test_every_event_comes_back_equal(event: Event) -> None:
    assert CODEC.decode(CODEC.encode(event), record_type(event)) == event
    assert CODEC.decode(CODEC.encode(event)) == event


@given(any_event())
@settings(max_examples=200, deadline=None)
def test_any_avro_library_reads_what_we_write(event: Event) -> None:
    value = CODEC.encode(event)
    schema = schema_of(type(event).__name__)
    assert value[:10] == b"\xc3\x01" + fingerprint(schema)
    undated = json.loads(json.dumps(schema).replace("timestamp-millis", ""))  # datetime cannot hold every long
    datum: Any = fastavro.schemaless_reader(BytesIO(value[10:]), undated, None)
    assert datum == dataclasses.asdict(event)


def test_the_fingerprint_is_the_one_the_avro_specification_gives() -> None:
    assert fingerprint("int")[::-1].hex() == "7275d51a3f395c8f"  # type: ignore[arg-type]  # published for the schema "int"


# ---- what does not fit is refused before it is written


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (dataclasses.replace(FINISHED, latency_ms=2**63), "too large"),
        (dataclasses.replace(FINISHED, latency_ms="soon"), "int"),  # type: ignore[arg-type]
        (dataclasses.replace(FINISHED, status="MAYBE"), "MAYBE"),  # type: ignore[arg-type]
        (dataclasses.replace(FINISHED, content_json="\ud800"), "surrogates"),
        (RunRequested(run_id=RUN, agent="a", input="", limits=Limits(cost_ceiling=Decimal("1e-13"))), "12 after the point"),
        (RunRequested(run_id=RUN, agent="a", input="", limits=Limits(cost_ceiling=Decimal("1e12"))), "12 digits before"),
        (RunRequested(run_id=RUN, agent="a", input="", limits=Limits(cost_ceiling=Decimal("NaN"))), "NaN"),
        (RunRequested(run_id=RUN, agent="a", input="", limits=Limits(max_steps=2**70)), "1180591620717411303424"),
        (RunRequested(run_id=RUN, agent="a", input="", limits=None), "NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_field_that_does_not_fit_is_refused_with_its_record(event: Event, says: str) -> None:
    with pytest.raises(ValueError, match=f"{type(event).__name__} does not fit its schema: .*{says}"):
        CODEC.encode(event)


@pytest.mark.parametrize("amount", ["0", "0.000000000001", "-0.000000000001", "999999999999.999999999999", "0.0123", "1E+2"])
def test_money_is_exact(amount: str) -> None:
    event = RunRequested(run_id=RUN, agent="a", input="", limits=Limits(cost_ceiling=Decimal(amount)))
    assert CODEC.decode(CODEC.encode(event)) == event


def test_money_does_not_depend_on_the_decimal_context_of_the_thread() -> None:
    event = RunRequested(run_id=RUN, agent="a", input="", limits=Limits(cost_ceiling=Decimal("123456.000000000001")))
    with localcontext(prec=3):
        assert CODEC.decode(CODEC.encode(event)) == event


# ---- what is no record is one error


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"\x00\x00\x00\x00",
        b"\xc3\x01",
        b"\xc3\x01" + bytes(7),
        b'{"type": "RunRequested"}',
        b"hello",
        CODEC.encode(CANCEL)[:10],
        CODEC.encode(CANCEL)[:-1],
        CODEC.encode(CANCEL) + b"\x00",
        CODEC.encode(CANCEL) * 2,
    ],
)
def test_bytes_that_are_no_record_are_malformed(value: bytes) -> None:
    assert problem_of(value) is Problem.MALFORMED


def test_an_unknown_fingerprint_is_an_unknown_schema() -> None:
    assert problem_of(b"\xc3\x01" + b"newer!!!" + CODEC.encode(CANCEL)[10:]) is Problem.UNKNOWN_SCHEMA


def test_a_schema_id_without_a_registry_is_an_unknown_schema() -> None:
    assert problem_of(b"\x00\x00\x00\x00\x07" + CODEC.encode(CANCEL)[10:]) is Problem.UNKNOWN_SCHEMA


@pytest.mark.parametrize("header", [b"RunPaused", b"", b"\xff\xfe", b"runcancelrequested", b"Event"])
def test_an_unknown_type_is_malformed_unless_a_newer_build_may_have_written_it(header: bytes) -> None:
    """What one mistyped header says must not make a run wait for a version that will never come."""
    body = CODEC.encode(CANCEL)
    assert problem_of(body, header) is Problem.MALFORMED, "its schema is no newer one"
    for value in (b"", b"x", b"\xc3\x01short", b"\x00\x00", b'{"type": "RunPaused"}'):
        assert problem_of(value, header) is Problem.MALFORMED, "no version frames a record so"
    for value in (b"\xc3\x01newer!!!" + body[10:], b"\x00\x00\x00\x00\x07" + body[10:]):
        assert problem_of(value, header) is Problem.UNKNOWN_SCHEMA


def test_a_header_that_contradicts_the_value_is_malformed() -> None:
    assert problem_of(CODEC.encode(CANCEL), b"RunRequested") is Problem.MALFORMED


def test_the_error_says_what_came() -> None:
    with pytest.raises(DecodeError, match=r"expected C3 01 .* got 3 bytes \(61 62 63\)"):
        CODEC.decode(b"abc")
    with pytest.raises(DecodeError, match=r"RunCancelRequested of 76 bytes has 2 bytes after its end"):
        CODEC.decode(CODEC.encode(CANCEL) + b"\x00\x00")


def test_the_error_does_not_repeat_what_came_at_length() -> None:
    value = CODEC.encode(dataclasses.replace(CANCEL, detail="x" * 100_000)).replace(b"x", b"\xff")
    with pytest.raises(DecodeError, match="cannot be read: UnicodeDecodeError") as raised:
        CODEC.decode(value)
    assert len(raised.value.detail) < 400


def attempt(value: bytes) -> None:
    """Anything but an event or our own error fails the test."""
    try:
        event = CODEC.decode(value)
    except DecodeError:
        return
    assert isinstance(event, get_args(Event))
    assert CODEC.decode(CODEC.encode(event)) == event


PREFIXES = st.sampled_from([CODEC.encode(CANCEL)[:10], CODEC.encode(FINISHED)[:10], b"\xc3\x01", b"\x00", bytes(5), b""])


@given(PREFIXES, st.binary(max_size=200))
@example(CODEC.encode(CANCEL)[:10], b"\xff" * 40)
@settings(max_examples=500, deadline=None)
def test_random_bytes_raise_nothing_else(prefix: bytes, body: bytes) -> None:
    attempt(prefix + body)


@given(any_event().map(CODEC.encode), st.data())
@settings(max_examples=500, deadline=None)
def test_damaged_records_raise_nothing_else(value: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(value)))
    removed = data.draw(st.integers(0, 3))
    attempt(value[:at] + data.draw(st.binary(max_size=12)) + value[at + removed :])


HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"  # 2^62 - 1 as a length or a count of map entries


@pytest.mark.parametrize(
    "body",
    [
        HUGE,  # run_id
        HUGE + bytes(100),
        b"\x01" + bytes(100),  # a negative length
        b"\x00" * 9 + b"\x02" + HUGE + b"\x00\x00" * 50,  # metadata, entries of no bytes
        b"\x00" * 9 + b"\x02" + b"\x01" + HUGE,  # metadata, a negative count and its size
        b"\x00\x00\x00\x00\x02" + HUGE,  # money
        b"\xff" * 100_000,  # one endless number
    ],
)
def test_a_length_that_lies_costs_neither_memory_nor_time(body: bytes) -> None:
    value = CODEC.encode(RunRequested(run_id="", agent="", input=""))[:10] + body
    tracemalloc.start()
    began = time.monotonic()
    try:
        assert problem_of(value) is Problem.MALFORMED
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 2


def test_money_of_a_megabyte_costs_no_time() -> None:
    event = RunRequested(run_id="", agent="", input="", limits=Limits(cost_ceiling=Decimal(1)))
    head, _, tail = CODEC.encode(event).partition(b"\x0c" + (10**12).to_bytes(6, "big"))
    megabyte = b"\x80\x80\x80\x01" + b"\x7f" * 2**20  # a length of 2^20 and that many bytes
    began = time.monotonic()
    assert problem_of(head + megabyte + tail) is Problem.MALFORMED
    assert time.monotonic() - began < 2


def test_a_snapshot_of_a_newer_version_is_unknown_and_not_half_understood() -> None:
    event = RunSnapshotted(run_id="r", epoch=1, last_offset=2, state_version=VERSION + 1, state_json="{}")
    with pytest.raises(DecodeError, match="version") as raised:
        Codec().decode(Codec().encode(event))
    assert raised.value.problem is Problem.UNKNOWN_SCHEMA
