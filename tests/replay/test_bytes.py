"""What a release wrote, today's build reads: as the same events, for ever."""

import json
from dataclasses import fields
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from runfold.log.codec import Codec
from runfold.log.formats import known_readings
from runfold.log.schemas import fingerprint

from . import frozen
from .samples import samples

CODEC = Codec()
FILES = sorted(frozen.BYTES.glob("*/*.bin"))
SCHEMAS = sorted(frozen.SCHEMAS.glob("*/*.avsc"))


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_bytes_of_a_release_are_read_as_the_event_they_were_written_from(path: Path) -> None:
    name = path.name.split(".")[0]
    expected = frozen.from_json(name, path.with_suffix(".json").read_text(encoding="utf-8"))
    assert CODEC.decode(path.read_bytes(), name.encode()) == expected


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_frozen_schema_and_any_avro_library_are_enough_to_read_the_bytes(path: Path) -> None:
    name = path.name.split(".")[0]
    schema = json.loads((frozen.SCHEMAS / path.parent.name / f"{name}.avsc").read_text(encoding="utf-8"))
    value = path.read_bytes()
    body = BytesIO(value[10:])
    datum = json.dumps(fastavro.schemaless_reader(body, schema, None), default=plain)
    assert (value[:10], body.read()) == (b"\xc3\x01" + fingerprint(schema), b"")
    assert frozen.from_json(name, datum) == frozen.from_json(name, path.with_suffix(".json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else str(value)


@pytest.mark.parametrize("path", SCHEMAS, ids=label)
def test_every_schema_of_a_release_is_shipped(path: Path) -> None:
    crc = fingerprint(json.loads(path.read_text(encoding="utf-8")))
    assert crc in known_readings(), f"copy {path} to schemas/older/{label(path)}.avsc: logs hold records of it"


def test_every_record_type_has_frozen_bytes() -> None:
    versions = {path.parent.name for path in FILES}
    assert versions == {path.parent.name for path in SCHEMAS}
    for version in versions:
        assert {path.name.split(".")[0] for path in FILES if path.parent.name == version} == {
            path.stem for path in SCHEMAS if path.parent.name == version
        }


def test_full_samples_leave_nothing_unset() -> None:
    """What is unset in a sample is not proven by its bytes."""
    for name, event in samples():
        if not name.endswith(".bare"):
            assert None not in [getattr(event, field.name) for field in fields(event)], name
