"""How one schema is written and read: fastavro at work on plain values, `datum` between them and the events.

Logical types are left to `datum`: fastavro would turn times into datetime objects and cost twice the time.
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
from runfold.log.schemas import NAMESPACE, Schema, fingerprint, hidden_differences, older, schema_of

CLASSES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes events of one type behind a fixed prefix."""

    prefix: bytes
    schema: Any
    datum: Callable[[Any], Datum]

    def write(self, event: Event) -> bytes:
        out = BytesIO()
        out.write(self.prefix)
        schemaless_writer(out, self.schema, self.datum(event))
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads bodies written with one schema as today's events."""

    name: str
    writer: Any
    reader: Any  # today's; None: the same as the writer's
    event: Callable[[Datum], Event]

    def read(self, value: bytes, start: int) -> Event:
        """The event whose body begins at ``start``. Raises `DecodeError` unless it ends where ``value`` ends."""
        body = BytesIO(value)
        body.seek(start)
        try:
            datum: Any = schemaless_reader(body, self.writer, self.reader)
            event = self.event(datum)
        except Exception as error:  # fastavro raises half a dozen unrelated classes on bad bytes
            raise DecodeError(Problem.MALFORMED, f"{self.name} of {len(value)} bytes cannot be read: {_shown(error)}") from error
        if rest := len(value) - body.tell():
            raise DecodeError(Problem.MALFORMED, f"{self.name} of {len(value)} bytes has {rest} bytes after its end")
        return event


def writing(name: str, prefix: bytes) -> Writing:
    return Writing(prefix, _todays(name), unfold(CLASSES[name]))


@cache
def known_readings() -> dict[bytes, Reading]:
    """By fingerprint: what this build writes and whatever released ones wrote."""
    return {crc: _reading(schema) for crc, schema in _known_schemas().items()}


def foreign_reading(text: str) -> Reading:
    """How to read what was written with a schema from a registry, which may be anybody's.

    Raises `DecodeError` (UNKNOWN_SCHEMA) unless today's schema, or a released one, can say all that this one can.
    """
    try:
        writer = json.loads(text)
        if writer["namespace"] != NAMESPACE or writer["name"] not in CLASSES:
            raise _unknown(f"{writer['namespace']}.{writer['name']}, not a record of {NAMESPACE} that this build knows")
        measure = _known_schemas().get(fingerprint(writer)) or schema_of(writer["name"])
        if differences := hidden_differences(writer, measure):
            raise _unknown(f"a {writer['name']} with what this build does not know: {', '.join(differences)}")
        return _reading(writer)
    except DecodeError:
        raise
    except Exception as error:  # whatever becomes of a text that is no schema
        raise _unknown(f"no Avro schema of a record: {_shown(error)}") from error


@cache
def _known_schemas() -> dict[bytes, Schema]:
    return {fingerprint(schema): schema for schema in (*older(), *map(schema_of, CLASSES))}


def _reading(writer: Schema) -> Reading:
    name = writer["name"]
    same = fingerprint(writer) == fingerprint(schema_of(name))
    return Reading(name, _parse(writer), None if same else _todays(name), fold(CLASSES[name]))


@cache
def _todays(name: str) -> Any:
    return _parse(schema_of(name))


def _parse(schema: Schema) -> Any:
    return parse_schema(_without_logical_types(schema))


def _without_logical_types(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_logical_types(value) for key, value in part.items() if key != "logicalType"}
    return [_without_logical_types(value) for value in part] if isinstance(part, list) else part


def _shown(error: Exception) -> str:
    """Not at length: some errors repeat all of the bytes, and what is said of a record goes into logs and headers."""
    return repr(error)[:200]


def _unknown(what: str) -> DecodeError:
    return DecodeError(Problem.UNKNOWN_SCHEMA, f"its schema is {what}")
