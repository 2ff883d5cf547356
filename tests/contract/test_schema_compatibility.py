"""Schemas only change so that every log ever written stays readable, and so that builds of a rolling deploy read each other."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runfold.log.schemas import Schema, record_names, schema_of

from .schema_rules import reads, violations

RELEASED = sorted((Path(__file__).parents[1] / "replay" / "schemas").glob("*/*.avsc"))
Change = Callable[[Schema], None]


def released(path: Path) -> Schema:
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_today_s_schema_is_a_lawful_successor_of_every_released_one(path: Path) -> None:
    assert path.stem in record_names(), "a record type is for ever: logs hold it"
    old, new = released(path), schema_of(path.stem)
    assert violations(old, new) == []
    assert reads(old, new) is None
    assert reads(new, old) is None


def test_something_is_released() -> None:
    assert RELEASED


# ---- the check itself refuses what it must


def field(schema: Schema, name: str) -> Any:
    return next(entry for entry in schema["fields"] if entry["name"] == name)


def changed(record: str, change: Change) -> tuple[Schema, Schema]:
    old = schema_of(record)
    new = copy.deepcopy(old)
    change(new)
    return old, new


def added(**entry: Any) -> Change:
    return lambda schema: schema["fields"].append(entry)


def removed(name: str) -> Change:
    return lambda schema: schema["fields"].remove(field(schema, name))


def retyped(name: str, type_: Any) -> Change:
    return lambda schema: field(schema, name).update(type=type_)


def test_a_field_without_default_is_refused_by_rule_and_by_trial() -> None:
    old, new = changed("ToolStepFinished", added(name="exit_code", type="long"))
    assert violations(old, new) == ["exit_code: is added without a default, records written before it cannot be read"]
    assert "exit_code" in str(reads(old, new))


@pytest.mark.parametrize(
    ("record", "change", "says"),
    [
        ("RunFinished", removed("output"), "output: is removed and had no default"),
        ("RunFinished", retyped("steps", "int"), "steps: the type changes from long to int"),
        ("RunFinished", retyped("output", ["null", "string"]), "output: the type changes"),
        ("RunFinished", retyped("command_id", "string"), "command_id: the type changes"),
        ("RunStarted", retyped("deadline", {"type": "long", "logicalType": "timestamp-micros"}), "deadline: logicalType changes"),
        ("RunFinished", lambda s: field(s, "cost")["type"][1].update(scale=2), "cost: scale changes from 12 to 2"),
        ("RunFinished", lambda s: field(s, "reason")["type"]["symbols"].remove("CANCEL"), "reason: the symbol CANCEL is removed"),
        ("RunFinished", lambda s: field(s, "reason")["type"].pop("default"), "reason: the default symbol changes"),
        ("RunFinished", lambda s: field(s, "status")["type"]["symbols"].append("X"), "status: symbols are added to an enum"),
        ("RunFinished", lambda s: field(s, "usage")["type"]["fields"].append({"name": "n", "type": "long"}), "usage.n: is added"),
        ("RunFinished", lambda s: field(s, "usage")["type"].update(name="Tokens"), "usage: name changes from Usage to Tokens"),
        ("RunFinished", lambda s: field(s, "cost").pop("default"), "cost: loses its default"),
        ("RunFinished", lambda s: s.update(namespace="runfold.v2"), "RunFinished: namespace changes"),
        ("RunRequested", lambda s: field(s, "metadata")["type"][1].update(values="bytes"), "metadata: values changes"),
    ],
)
def test_an_unlawful_change_is_refused(record: str, change: Change, says: str) -> None:
    (line,) = violations(*changed(record, change))
    assert line.startswith(says)


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ("RunFinished", added(name="exit_code", type=["null", "long"], default=None)),
        ("RunFinished", added(name="tags", type={"type": "map", "values": "string"}, default={})),
        ("RunFinished", removed("command_id")),
        ("RunFinished", lambda s: field(s, "reason")["type"]["symbols"].append("SURPRISE")),
        ("RunFinished", lambda s: s.update(doc="Said better.")),
        ("RunFinished", lambda s: s["fields"].reverse()),
    ],
)
def test_a_lawful_change_is_allowed_by_rule_and_by_trial(record: str, change: Change) -> None:
    old, new = changed(record, change)
    assert violations(old, new) == []
    assert reads(old, new) is None
    assert reads(new, old) is None
