"""Events as the bytes of the log, and back.

Two framings stand before the Avro body; every reader accepts both:

- ``C3 01`` + 8-byte little-endian CRC-64-AVRO fingerprint of the writer's schema (Avro single-object encoding);
- ``00`` + 4-byte big-endian id of the writer's schema in a Confluent-compatible registry; written when one is configured.

A body is always read with the schema it was written with and then resolved to today's. A schema that says more than today's
is refused, not trimmed.
"""

from runfold.core import snapshot
from runfold.core.errors import DecodeError
from runfold.core.events import Event, Problem, RunSnapshotted
from runfold.log.formats import CLASSES, Reading, foreign_reading, known_readings, writing
from runfold.log.registry import ConfluentRegistry, Registry
from runfold.log.schemas import fingerprint, schema_of, schema_text

TYPE_HEADER = "runfold-type"  # the Kafka header that names the record type, so that readers can skip what they do not know

_SINGLE_OBJECT = b"\xc3\x01"
_CONFLUENT = b"\x00"

Schema = bytes | int  # of the writer: its fingerprint, or its id in the registry


def record_type(event: Event) -> bytes:
    """The value of `TYPE_HEADER` for ``event``."""
    return type(event).__name__.encode()


class Codec:
    """Encodes with one framing, decodes both. Safe to use from several threads.

    With a ``registry``, the ids of all record types are looked up (and registered, if new) here, under the subjects
    ``<topic>-<record name>``; raises as `Registry.id_of` does.
    """

    def __init__(self, registry: Registry | None = None, topic: str = "") -> None:
        self._registry = registry
        self._writings = {cls: writing(name, _prefix(name, registry, topic)) for name, cls in CLASSES.items()}
        self._readings: dict[Schema, Reading | str] = dict(known_readings().items())  # or why there is none
        if registry is not None:
            self._readings |= self._our_own_ids()

    def _our_own_ids(self) -> dict[Schema, Reading | str]:
        """By the registry's id, what this build writes."""
        fingerprints = {cls: fingerprint(schema_of(name)) for name, cls in CLASSES.items()}
        return {_framing(each.prefix)[0]: self._readings[fingerprints[cls]] for cls, each in self._writings.items()}

    def encode(self, event: Event) -> bytes:
        """The value of the Kafka record. Raises `ValueError` when a field does not fit its schema."""
        try:
            return self._writings[type(event)].write(event)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{type(event).__name__} does not fit its schema: {error}") from error

    def decode(self, value: bytes, type_header: bytes | None = None) -> Event:
        """The event that ``value`` holds. ``type_header`` is the raw value of `TYPE_HEADER`, None where there is none.

        Raises `DecodeError` whatever the bytes are. With a registry, the first sight of a schema id asks it: that blocks, at
        worst for its timeout, and raises as `Registry.schema` does; such an error is no verdict on the record: try again.
        """
        schema, start = _framing(value)
        if type_header is not None and schema not in self._readings and type_header.decode("utf-8", "replace") not in CLASSES:
            raise DecodeError(Problem.UNKNOWN_SCHEMA, f"this build knows no record type {type_header[:80]!r}")
        reading = self._reading(schema)
        if type_header is not None and type_header != reading.name.encode():
            raise DecodeError(Problem.MALFORMED, f"header {TYPE_HEADER} says {type_header[:80]!r}, the value is a {reading.name}")
        event = reading.read(value, start)
        if isinstance(event, RunSnapshotted) and event.state_version > snapshot.VERSION:
            detail = f"a snapshot of version {event.state_version}, this build knows {snapshot.VERSION}"
            raise DecodeError(Problem.UNKNOWN_SCHEMA, detail)
        return event

    def _reading(self, schema: Schema) -> Reading:
        found = self._readings.get(schema)
        if found is None:
            if isinstance(schema, bytes):
                raise DecodeError(Problem.UNKNOWN_SCHEMA, f"this build knows no schema with the fingerprint {schema.hex()}")
            found = self._fetch(schema)
            if self._registry is not None:  # its ids are few: junk's are not
                self._readings[schema] = found
        if isinstance(found, str):
            raise DecodeError(Problem.UNKNOWN_SCHEMA, found)
        return found

    def _fetch(self, schema_id: int) -> Reading | str:
        """How to read what was written with it, or why that cannot be known."""
        if self._registry is None:
            return f"schema id {schema_id}: no schema registry is configured (RUNFOLD_REGISTRY_URL)"
        text = self._registry.schema(schema_id)
        if text is None:
            return f"schema id {schema_id}: the schema registry does not have it"
        try:
            return foreign_reading(text)
        except DecodeError as error:
            return f"schema id {schema_id}: {error.detail}"


def _framing(value: bytes) -> tuple[Schema, int]:
    """The schema that ``value`` says it was written with, and where its body begins. Raises `DecodeError` (MALFORMED)."""
    if value[:2] == _SINGLE_OBJECT and len(value) >= 10:
        return value[2:10], 10
    if value[:1] == _CONFLUENT and len(value) >= 5:
        return int.from_bytes(value[1:5], "big"), 5
    raise DecodeError(
        Problem.MALFORMED,
        f"expected C3 01 and a fingerprint, or 00 and a schema id; got {len(value)} bytes ({value[:16].hex(' ')})",
    )


def codec_for(registry_url: str, topic: str) -> Codec:
    """The codec that the settings ask for: with the registry at ``registry_url``, or without one where that is empty."""
    return Codec(ConfluentRegistry(registry_url), topic) if registry_url else Codec()


def _prefix(name: str, registry: Registry | None, topic: str) -> bytes:
    if registry is None:
        return _SINGLE_OBJECT + fingerprint(schema_of(name))
    return _CONFLUENT + registry.id_of(f"{topic}-{name}", schema_text(name)).to_bytes(4, "big")
