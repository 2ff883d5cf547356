"""Events as the bytes of the log, and back.

Two framings stand before the Avro body; every reader accepts both:

- ``C3 01`` + 8-byte little-endian CRC-64-AVRO fingerprint of the writer's schema (Avro single-object encoding);
- ``00`` + 4-byte big-endian id of the writer's schema in a Confluent-compatible registry; written when one is configured.

A body is always read with the schema it was written with and then resolved to today's. A schema that says more than today's
is refused, not trimmed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any, get_args

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from runfold.core.errors import DecodeError
from runfold.core.events import Event, Problem
from runfold.log.datum import Datum, fold, unfold
from runfold.log.registry import ConfluentRegistry, Registry
from runfold.log.schemas import NAMESPACE, Schema, fingerprint, older, schema_of, schema_text, unknown_parts

TYPE_HEADER = "runfold-type"  # the Kafka header that names the record type, so that readers can skip what they do not know

_SINGLE_OBJECT = b"\xc3\x01"
_CONFLUENT = b"\x00"
_CLASSES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}


def record_type(event: Event) -> bytes:
    """The value of `TYPE_HEADER` for ``event``."""
    return type(event).__name__.encode()


@dataclass(frozen=True, slots=True)
class _Writing:
    prefix: bytes
    schema: Schema
    datum: Callable[[Any], Datum]


@dataclass(frozen=True, slots=True)
class _Reading:
    name: str
    writer: Schema
    reader: Schema | None  # None: the same as the writer's
    event: Callable[[Datum], Any]


class Codec:
    """Encodes with one framing, decodes both. Safe to use from several threads.

    With a ``registry``, the ids of all record types are looked up (and registered, if new) here, under the subjects
    ``<topic>-<record name>``; raises as `Registry.id_of` does.
    """

    def __init__(self, registry: Registry | None = None, topic: str = "") -> None:
        self._registry = registry
        self._writings = {cls: _writing(name, _prefix(name, registry, topic)) for name, cls in _CLASSES.items()}
        self._by_fingerprint = _known_readings()
        self._by_id: dict[int, _Reading | DecodeError] = {}

    def encode(self, event: Event) -> bytes:
        """The value of the Kafka record. Raises `ValueError` when a field does not fit its schema."""
        writing = self._writings[type(event)]
        out = BytesIO()
        out.write(writing.prefix)
        try:
            schemaless_writer(out, writing.schema, writing.datum(event))
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{type(event).__name__} does not fit its schema: {error}") from error
        return out.getvalue()

    def decode(self, value: bytes, type_header: bytes | None = None) -> Event:
        """The event that ``value`` holds. ``type_header`` is the raw value of the header, None where there is none.

        Raises `DecodeError`, and, only with a registry, `LogUnavailable` while the registry is needed and away. The first time
        an id is seen the registry is asked: that blocks, at worst for its timeout.
        """
        _check_known(type_header)
        reading, start = self._reading(value)
        if type_header is not None and type_header != reading.name.encode():
            raise DecodeError(Problem.MALFORMED, f"header {TYPE_HEADER} says {type_header!r}, the value is a {reading.name}")
        event: Event = _read(reading, value, start)
        return event

    def _reading(self, value: bytes) -> tuple[_Reading, int]:
        if value[:2] == _SINGLE_OBJECT and len(value) >= 10:
            return self._reading_of_fingerprint(value[2:10]), 10
        if value[:1] == _CONFLUENT and len(value) >= 5:
            return self._reading_of_id(int.from_bytes(value[1:5], "big")), 5
        raise DecodeError(Problem.MALFORMED, f"expected a value that starts with C3 01 or 00, got {len(value)} bytes {_hex(value)}")

    def _reading_of_fingerprint(self, crc: bytes) -> _Reading:
        try:
            return self._by_fingerprint[crc]
        except KeyError:
            raise DecodeError(Problem.UNKNOWN_SCHEMA, f"no schema of this build has the fingerprint {crc.hex()}") from None

    def _reading_of_id(self, schema_id: int) -> _Reading:
        found = self._by_id.get(schema_id) or self._fetch(schema_id)
        if isinstance(found, DecodeError):
            raise DecodeError(found.problem, found.detail)
        return found

    def _fetch(self, schema_id: int) -> _Reading | DecodeError:
        if self._registry is None:
            return _unknown(schema_id, "needs a schema registry and none is configured (RUNFOLD_REGISTRY_URL)")
        text = self._registry.schema(schema_id)
        found = _unknown(schema_id, "is not in the schema registry") if text is None else _foreign_reading(schema_id, text)
        self._by_id[schema_id] = found
        return found


def codec_for(registry_url: str, topic: str) -> Codec:
    """The codec that the settings ask for: with the registry at ``registry_url``, or without one where that is empty."""
    return Codec(ConfluentRegistry(registry_url), topic) if registry_url else Codec()


def _prefix(name: str, registry: Registry | None, topic: str) -> bytes:
    if registry is None:
        return _SINGLE_OBJECT + fingerprint(schema_of(name))
    return _CONFLUENT + registry.id_of(f"{topic}-{name}", schema_text(name)).to_bytes(4, "big")


def _writing(name: str, prefix: bytes) -> _Writing:
    return _Writing(prefix, _parsed(name), unfold(_CLASSES[name]))


@cache
def _known_readings() -> dict[bytes, _Reading]:
    """By fingerprint: what this build writes and whatever released ones wrote."""
    return {fingerprint(schema): _reading_of(schema) for schema in (*older(), *map(schema_of, _CLASSES))}


def _reading_of(writer: Schema) -> _Reading:
    name = writer["name"]
    same = fingerprint(writer) == fingerprint(schema_of(name))
    return _Reading(name, _parse(writer), None if same else _parsed(name), fold(_CLASSES[name]))


def _foreign_reading(schema_id: int, text: str) -> _Reading | DecodeError:
    """How to read what was written with a schema from the registry, which may be anybody's."""
    try:
        writer = json.loads(text)
        name = writer["name"]
        if writer.get("namespace") != NAMESPACE or name not in _CLASSES:
            return _unknown(schema_id, f"is {writer.get('namespace')}.{name}, not a record of {NAMESPACE} that this build knows")
        if parts := unknown_parts(writer, schema_of(name)):
            return _unknown(schema_id, f"is a {name} with parts that this build does not know: {', '.join(parts)}")
        return _reading_of(writer)
    except Exception as error:  # whatever fastavro makes of a schema that is none
        return _unknown(schema_id, f"is no Avro schema of ours: {error!r}")


def _unknown(schema_id: int, why: str) -> DecodeError:
    return DecodeError(Problem.UNKNOWN_SCHEMA, f"schema id {schema_id} {why}")


@cache
def _parsed(name: str) -> Schema:
    return _parse(schema_of(name))


def _parse(schema: Schema) -> Schema:
    """The schema as fastavro works with it, without logical types: times stay integers, money is converted in `datum`."""
    parsed: Any = parse_schema(_without_logical_types(schema))
    return parsed


def _without_logical_types(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_logical_types(value) for key, value in part.items() if key != "logicalType"}
    return [_without_logical_types(value) for value in part] if isinstance(part, list) else part


def _check_known(type_header: bytes | None) -> None:
    if type_header is not None and type_header.decode("utf-8", "replace") not in _CLASSES:
        raise DecodeError(Problem.UNKNOWN_SCHEMA, f"this build knows no record type {type_header[:80]!r}")


def _read(reading: _Reading, value: bytes, start: int) -> Any:
    body = BytesIO(value)
    body.seek(start)
    try:
        datum: Any = schemaless_reader(body, reading.writer, reading.reader)
        event = reading.event(datum)
    except Exception as error:  # fastavro raises half a dozen unrelated classes on bad bytes
        raise DecodeError(Problem.MALFORMED, f"{reading.name} of {len(value)} bytes cannot be read: {error!r}") from error
    if rest := len(value) - body.tell():
        raise DecodeError(Problem.MALFORMED, f"{reading.name} of {len(value)} bytes has {rest} bytes after its end")
    return event


def _hex(value: bytes) -> str:
    return f"({value[:16].hex(' ')})"
