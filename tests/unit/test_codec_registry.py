"""The codec with a schema registry: ids once at the start, foreign schemas once each, and clear errors when it is away."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from runfold.core.errors import ConfigError, DecodeError, LogUnavailable
from runfold.core.events import Problem, RunCancelRequested
from runfold.log.codec import Codec, codec_for
from runfold.log.registry import ConfluentRegistry
from runfold.log.schemas import record_names, schema_of, schema_text

from .codec_registry_stub import Shelf, serving

TOPIC = "runfold.runs"
CANCEL = RunCancelRequested(run_id="6f1c0a52-8c1e-4b7e-9a51-0d2f6b1c7e10", command_id="c-1", requested_by="al", detail="enough")
BODY = Codec().encode(CANCEL)[10:]


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with serving(Shelf()) as shelf:
        yield shelf


def framed(schema_id: int, body: bytes = BODY) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def unknown_schema(codec: Codec, value: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        codec.decode(value)
    assert caught.value.problem is Problem.UNKNOWN_SCHEMA
    return caught.value.detail


def variant(**changes: Any) -> str:
    return json.dumps(schema_of("RunCancelRequested") | changes)


def with_field(**field: Any) -> str:
    return variant(fields=[*schema_of("RunCancelRequested")["fields"], field])


# ---- writing


def test_records_carry_the_registry_s_id_under_the_subject_of_their_type(shelf: Shelf) -> None:
    value = codec_for(shelf.url, TOPIC).encode(CANCEL)
    assert set(shelf.subjects) == {f"{TOPIC}-{name}" for name in record_names()}
    (schema_id,) = shelf.subjects[f"{TOPIC}-RunCancelRequested"]
    assert value == framed(schema_id)
    assert shelf.schemas[schema_id] == schema_text("RunCancelRequested")


def test_ids_are_resolved_once_at_the_start_and_nothing_is_registered_twice(shelf: Shelf) -> None:
    codec_for(shelf.url, TOPIC)
    shelf.calls.clear()
    codec = codec_for(shelf.url, TOPIC)
    assert len(shelf.calls) == len(record_names())
    assert not [call for call in shelf.calls if call.endswith("/versions")]
    shelf.calls.clear()
    assert codec.decode(codec.encode(CANCEL)) == CANCEL
    with pytest.raises(DecodeError) as caught:
        codec.decode(codec.encode(CANCEL), b"RunTeleported")
    assert caught.value.problem is Problem.MALFORMED, "what this build writes itself is of no newer one"
    assert shelf.calls == []


def test_without_a_registry_nothing_is_asked() -> None:
    assert codec_for("", TOPIC).encode(CANCEL)[:2] == b"\xc3\x01"


def test_both_framings_are_read_whatever_is_written(shelf: Shelf) -> None:
    codec = codec_for(shelf.url, TOPIC)
    assert codec.decode(Codec().encode(CANCEL)) == codec.decode(codec.encode(CANCEL)) == CANCEL


# ---- reading what others wrote


@pytest.mark.parametrize(
    "schema",
    [
        variant(doc="the same, said otherwise"),
        json.dumps({key: value for key, value in schema_of("RunCancelRequested").items() if key != "doc"}),
    ],
)
def test_another_spelling_of_what_we_know_is_read(shelf: Shelf, schema: str) -> None:
    assert codec_for(shelf.url, TOPIC).decode(framed(shelf.put(schema))) == CANCEL


def test_an_older_schema_is_resolved_to_today_s(shelf: Shelf) -> None:
    older = shelf.put(variant(fields=schema_of("RunCancelRequested")["fields"][:3]))
    event = codec_for(shelf.url, TOPIC).decode(framed(older, BODY.removesuffix(b"\x0cenough")))
    assert event == RunCancelRequested(run_id=CANCEL.run_id, command_id="c-1", requested_by="al", detail="")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (with_field(name="urgent", type="boolean", default=False), "does not know: urgent"),
        (with_field(name="detail2", type=["null", "string"], default=None), "does not know: detail2"),
        (variant(name="RunPauseRequested"), "runfold.v1.RunPauseRequested, not a record of runfold.v1"),
        (variant(namespace="runfold.v2"), "runfold.v2.RunCancelRequested, not a record of runfold.v1"),
        ('"string"', "no Avro schema of a record"),
        ("[]", "no Avro schema of a record"),
        ("syntax = \"proto3\";", "no Avro schema of a record"),
        (variant(fields=[{"name": "run_id", "type": "Nonsense"}]), "no Avro schema of a record"),
        (variant(fields=[{"name": "run_id", "type": "long"}]), "run_id as long"),
    ],
)
def test_a_schema_that_says_what_this_build_does_not_know_is_refused(shelf: Shelf, schema: str, says: str) -> None:
    assert says in unknown_schema(codec_for(shelf.url, TOPIC), framed(shelf.put(schema)))


@pytest.mark.parametrize(
    ("record", "old", "new", "says"),
    [
        ("RunFinished", '"CANCEL"', '"CANCEL", "SURPRISE"', "reason=SURPRISE"),
        ("RunFinished", '"TIMED_OUT"', '"TIMED_OUT", "PAUSED"', "status=PAUSED"),
        ("RunRequested", '"scale": 12', '"scale": 2', "limits.cost_ceiling as bytes decimal 24 2"),
        ("RunRequested", '"logicalType": "decimal", ', "", "limits.cost_ceiling as bytes 24 12"),
        ("RunStarted", "timestamp-millis", "timestamp-micros", "deadline as long timestamp-micros"),
        ("RunFinished", '"cache_read_tokens"', '"cached_tokens"', "usage.cached_tokens"),
    ],
)
def test_no_difference_hides_behind_avro_s_own_resolution(shelf: Shelf, record: str, old: str, new: str, says: str) -> None:
    text = json.dumps(schema_of(record))
    assert old in text
    assert says in unknown_schema(codec_for(shelf.url, TOPIC), framed(shelf.put(text.replace(old, new)), b""))


def test_an_id_that_the_registry_does_not_have_is_asked_for_once(shelf: Shelf) -> None:
    codec = codec_for(shelf.url, TOPIC)
    shelf.calls.clear()
    assert "schema id 4711: the schema registry does not have it" in unknown_schema(codec, framed(4711))
    assert "schema id 4711" in unknown_schema(codec, framed(4711))
    assert shelf.calls == ["GET /schemas/ids/4711"]


# ---- when the registry fails


def test_a_registry_that_is_away_at_the_start_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LogUnavailable, match=f"{url} does not answer: .*is it up and reachable"):
            codec_for(url, TOPIC)


def test_a_registry_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = ConfluentRegistry(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
        with pytest.raises(LogUnavailable, match="does not answer"):
            registry.schema(1)


def test_an_outage_is_no_verdict_on_a_record_and_is_not_remembered() -> None:
    shelf = Shelf()
    with serving(shelf):
        codec = codec_for(shelf.url, TOPIC)
        schema_id = shelf.put(variant(doc="another producer's"))
    with pytest.raises(LogUnavailable):
        codec.decode(framed(schema_id))
    with serving(shelf, urlsplit(shelf.url).port or 0):
        assert codec.decode(framed(schema_id)) == CANCEL


def test_a_server_error_is_an_outage(shelf: Shelf) -> None:
    shelf.answer = 503, "starting"
    with pytest.raises(LogUnavailable, match="answered 503: starting"):
        codec_for(shelf.url, TOPIC)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, "Unauthorized"), "answered 401: Unauthorized"),
        ((409, '{"error_code": 409, "message": "incompatible with an earlier schema"}'), "incompatible with an earlier schema"),
        ((200, "<html>welcome</html>"), "expected JSON .* check the URL"),
        ((200, "[1]"), r"expected an id for subject runfold.runs-\w+ .* got \[1\]; check the URL"),
        ((404, "no such page"), "check the URL"),
    ],
)
def test_a_refusal_is_a_matter_of_configuration(shelf: Shelf, answer: tuple[int, str], says: str) -> None:
    shelf.answer = answer
    with pytest.raises(ConfigError, match=says):
        codec_for(shelf.url, TOPIC)


@pytest.mark.parametrize("url", ["localhost:8081", "file:///etc/passwd", "http://", "8081"])
def test_a_url_that_is_none_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="expected http://host:port"):
        codec_for(url, TOPIC)


def test_credentials_in_the_url_are_sent_and_never_shown(shelf: Shelf) -> None:
    url = shelf.url.replace("http://", "http://key:s%40cret@")
    codec_for(url, TOPIC)
    assert shelf.authorization == "Basic a2V5OnNAY3JldA=="
    shelf.answer = 403, "no"
    with pytest.raises(ConfigError) as caught:
        codec_for(url, TOPIC)
    assert "cret" not in str(caught.value)
