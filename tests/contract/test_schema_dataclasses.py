"""schemas/ and core/events.py say the same: names, order, types, nullability, defaults, and each schema explains itself."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from fastavro import parse_schema
from fastavro.validation import validate

from runfold.core.events import Command, Event
from runfold.log.schemas import NAMESPACE, Schema, record_names, schema_of, schema_text

CLASSES = {cls.__name__: cls for cls in get_args(Event)}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 24, "scale": 12}
TIMES = {"deadline", "retry_at"}
DEFAULTS = {"OnBudget": "SUSPEND"}  # symbols for what a reader does not know, where it is not UNSPECIFIED
each_record = pytest.mark.parametrize("name", sorted(CLASSES))


def avro_type(hint: Any, name: str) -> Any:
    """The Avro type that a field of this type hint must have; named types are reduced to their name."""
    args = get_args(hint)
    if NoneType in args:
        return ["null", avro_type(next(arg for arg in args if arg is not NoneType), name)]
    if hint is int and name in TIMES:
        return {"type": "long", "logicalType": "timestamp-millis"}
    if get_origin(hint) is dict:
        return {"type": "map", "values": "string"}
    plain = {str: "string", int: "long", bool: "boolean", Decimal: MONEY}
    return plain.get(hint, hint.__name__)


def reduced(avro: Any) -> Any:
    if isinstance(avro, list):
        return [reduced(branch) for branch in avro]
    return avro["name"] if isinstance(avro, dict) and "name" in avro else avro


def named_types(avro: Any) -> Iterator[Schema]:
    """Every record and enum that a schema defines, itself included."""
    if isinstance(avro, list):
        for branch in avro:
            yield from named_types(branch)
    if isinstance(avro, dict) and "name" in avro:
        yield avro
        for field in avro.get("fields", []):
            yield from named_types(field["type"])


def python_types(cls: type) -> Iterator[type]:
    """``cls`` and every dataclass and enum that its fields hold."""
    yield cls
    if not is_dataclass(cls):
        return
    for hint in get_type_hints(cls).values():
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and (is_dataclass(part) or issubclass(part, Enum)):
                yield from python_types(part)


def default_of(field: Field[Any], hint: Any) -> Any:
    """The Avro default that a dataclass field calls for: null wherever it may be null, its own default otherwise."""
    if NoneType in get_args(hint):
        return None
    return asdict(field.default) if is_dataclass(field.default) else field.default  # type: ignore[arg-type]


def test_every_event_has_a_schema_and_every_schema_an_event() -> None:
    assert record_names() == set(CLASSES)


@each_record
def test_the_file_is_a_schema_by_itself_under_its_own_name(name: str) -> None:
    schema = schema_of(name)
    parse_schema(json.loads(schema_text(name)))
    assert (schema["type"], schema["name"], schema["namespace"]) == ("record", name, NAMESPACE)


@each_record
def test_fields_are_those_of_the_dataclass_in_its_order(name: str) -> None:
    found = {avro["name"]: avro for avro in named_types(schema_of(name))}
    for cls in python_types(CLASSES[name]):
        if is_dataclass(cls):
            hints = get_type_hints(cls)
            expected = [(field.name, avro_type(hints[field.name], field.name)) for field in fields(cls)]
            assert [(field["name"], reduced(field["type"])) for field in found[cls.__name__]["fields"]] == expected


@each_record
def test_symbols_are_those_of_the_enum_in_its_order(name: str) -> None:
    found = {avro["name"]: avro for avro in named_types(schema_of(name))}
    for cls in python_types(CLASSES[name]):
        if issubclass(cls, Enum):
            assert found[cls.__name__]["symbols"] == [member.value for member in cls]
            expected = "UNSPECIFIED" if "UNSPECIFIED" in cls.__members__ else DEFAULTS.get(cls.__name__)
            assert found[cls.__name__].get("default") == expected


@each_record
def test_defaults_are_those_of_the_dataclass_and_null_where_it_may_be_null(name: str) -> None:
    found = {avro["name"]: avro for avro in named_types(schema_of(name))}
    for cls in python_types(CLASSES[name]):
        for field in fields(cls) if is_dataclass(cls) else ():
            expected = default_of(field, get_type_hints(cls)[field.name])
            avro = next(avro for avro in found[cls.__name__]["fields"] if avro["name"] == field.name)
            assert avro.get("default", MISSING) == expected, f"{cls.__name__}.{field.name}"
            assert "default" not in avro or validate(avro["default"], _first_branch(avro["type"]))


def _first_branch(avro: Any) -> Any:
    return avro[0] if isinstance(avro, list) else avro


def test_a_type_that_several_records_hold_is_the_same_in_each() -> None:
    seen: dict[str, Schema] = {}
    for name in CLASSES:
        for avro in named_types(schema_of(name)):
            assert seen.setdefault(avro["name"], avro) == avro


@each_record
def test_every_record_field_and_enum_says_what_it_means(name: str) -> None:
    for avro in named_types(schema_of(name)):
        assert len(avro["doc"]) > 20, avro["name"]
        for field in avro.get("fields", []):
            assert len(field["doc"]) > 3, f"{avro['name']}.{field['name']}"
            assert field["doc"].endswith("."), f"{avro['name']}.{field['name']}"


@each_record
def test_the_schema_says_who_may_write_it(name: str) -> None:
    command = name in {cls.__name__ for cls in get_args(Command)}
    assert ("A command: anyone may produce it." in schema_of(name)["doc"]) is command
    assert ("An event: only the owner" in schema_of(name)["doc"]) is not command
