"""The Avro schemas of the log, from the wheel or from a checkout.

``schemas/<Name>.avsc`` is what today's build writes. ``schemas/older/<version>/<Name>.avsc`` is what a released build wrote
and today's does not: readers need the writer's schema for ever.
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fastavro.schema import fingerprint as avro_fingerprint
from fastavro.schema import to_parsing_canonical_form

Schema = dict[str, Any]
NAMESPACE = "runfold.v1"


def root() -> Traversable:
    """The directory of schemas: package data of a wheel, or ``schemas/`` of the checkout that this file is in."""
    packaged = files("runfold") / "schemas"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "schemas"


@cache
def record_names() -> frozenset[str]:
    """Names of all record types that this build knows."""
    return frozenset(entry.name.removesuffix(".avsc") for entry in root().iterdir() if entry.name.endswith(".avsc"))


@cache
def schema_text(name: str) -> str:
    """The schema of a record type as it stands in its file. Raises `KeyError` for a type that does not exist."""
    if name not in record_names():
        raise KeyError(f"no record type {name!r}; there are {', '.join(sorted(record_names()))}")
    return (root() / f"{name}.avsc").read_text(encoding="utf-8")


def schema_of(name: str) -> Schema:
    """The schema of a record type, documentation and logical types included. Raises `KeyError` as `schema_text` does."""
    schema: Schema = json.loads(schema_text(name))
    return schema


def older() -> Iterator[Schema]:
    """Every schema that a release wrote and this build no longer writes."""
    directory = root() / "older"
    for version in directory.iterdir() if directory.is_dir() else ():
        for entry in version.iterdir():
            yield json.loads(entry.read_text(encoding="utf-8"))


def fingerprint(schema: Schema) -> bytes:
    """CRC-64-AVRO of the parsing canonical form: 8 bytes, little-endian, as single-object encoding wants them."""
    return bytes.fromhex(avro_fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def hidden_differences(writer: Any, reader: Any, path: str = "") -> list[str]:
    """What ``writer`` can say that ``reader`` would drop, replace or take for something else, as paths.

    Avro's own resolution passes over unknown fields, unknown enum symbols and logical types (the scale of money, the unit of
    times) without a word. An owner that did so would fold a wrong state.
    """
    if isinstance(writer, list):
        return [difference for branch in writer for difference in hidden_differences(branch, reader, path)]
    branches = reader if isinstance(reader, list) else [reader]
    reader = next((branch for branch in branches if _kind(branch) == _kind(writer)), None)
    if reader is None:
        return [f"{path} as {' '.join(map(str, _kind(writer)))}"]
    match writer["type"] if isinstance(writer, dict) else writer:
        case "enum":
            return [f"{path}={symbol}" for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        case "record":
            return _in_fields(writer, reader, path)
        case _:
            return []


def _kind(schema: Any) -> tuple[Any, ...]:
    """What makes two types the same on the wire and in meaning, names and parts aside."""
    if not isinstance(schema, dict):
        return (schema,)
    return tuple(schema[key] for key in ("type", "logicalType", "precision", "scale") if key in schema)


def _in_fields(writer: Schema, reader: Schema, path: str) -> list[str]:
    known = {field["name"]: field["type"] for field in reader["fields"]}
    found = []
    for field in writer["fields"]:
        at = f"{path}.{field['name']}".lstrip(".")
        found += hidden_differences(field["type"], known[field["name"]], at) if field["name"] in known else [at]
    return found
