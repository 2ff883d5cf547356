"""The tables of docs/contract.md, made from schemas/. ``python -m tests.contract.schema_tables`` writes them into the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from runfold.core.events import Event
from runfold.log.schemas import Schema, schema_of

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
BEGIN, END = "<!-- made from schemas/ by tests/contract/schema_tables.py -->\n", "<!-- end of what is made -->\n"


def tables() -> str:
    """One section per record in the order of the code, then one per record that stands inside others."""
    records = [schema_of(cls.__name__) for cls in get_args(Event)]
    inner = {part["name"]: part for record in records for part in _inner_records(record)}
    return "\n".join(_section(schema) for schema in (*records, *inner.values()))


def _inner_records(schema: Schema) -> Iterator[Schema]:
    for field in schema["fields"]:
        for branch in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            if isinstance(branch, dict) and branch["type"] == "record":
                yield branch


def _section(schema: Schema) -> str:
    rows = [f"| `{field['name']}` | {_type(field['type'])}{_default(field)} | {field['doc']} |" for field in schema["fields"]]
    return "\n".join([f"### {schema['name']}", "", schema["doc"], "", "| field | type | meaning |", "|---|---|---|", *rows, ""])


def _type(avro: Any) -> str:
    match avro:
        case list():
            return " or ".join(_type(branch) for branch in (*avro[1:], avro[0]))
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return f"decimal({precision}, {scale})"
        case {"logicalType": logical}:
            return str(logical)
        case {"type": "map", "values": values}:
            return f"map of {values}"
        case {"name": name, "type": "record"}:
            return f"[{name}](#{name.lower()})"
        case {"name": name}:
            return f"enum [{name}](#enums)"
        case _:
            return str(avro)


def _default(field: Any) -> str:
    plain = "default" in field and field["default"] is not None and not isinstance(field["default"], dict)
    return f", default `{json.dumps(field['default'])}`" if plain else ""


def made() -> str:
    """What stands between the markers of the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(BEGIN + made() + END, BEGIN + tables() + END), encoding="utf-8")
