"""What a schema may become: every reader, older or newer, must read what every writer, older or newer, wrote.

Stricter than Avro: money and times keep their logical type, numbers are not promoted, and an enum never loses a symbol, for a
log that holds it must fold to the same state for ever.
"""

from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.utils import generate_one

from runfold.log.schemas import Schema

_MEANING = ("type", "name", "namespace", "logicalType", "precision", "scale", "values", "items")


def violations(old: Any, new: Any, path: str = "") -> list[str]:
    """What forbids ``new`` as the successor of ``old``, one line each; empty when it is allowed."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _changed_meaning(old, new, path) + _fields(old, new, path) + _symbols(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for before, after in zip(old, new, strict=True) for line in violations(before, after, path)]
    return [] if old == new else [f"{path}: the type changes from {old} to {new}"]


def _changed_meaning(old: Schema, new: Schema, path: str) -> list[str]:
    return [
        f"{path or old.get('name')}: {key} changes from {old.get(key)} to {new.get(key)}"
        for key in _MEANING
        if old.get(key) != new.get(key)
    ]


def _fields(old: Schema, new: Schema, path: str) -> list[str]:
    before = {field["name"]: field for field in old.get("fields", [])}
    after = {field["name"]: field for field in new.get("fields", [])}
    found = []
    for name in before.keys() | after.keys():
        at = f"{path}.{name}".lstrip(".")
        if name not in before and "default" not in after[name]:
            found.append(f"{at}: is added without a default, records written before it cannot be read")
        elif name not in after and "default" not in before[name]:
            found.append(f"{at}: is removed and had no default, older readers cannot read what is written without it")
        elif name in before and name in after:
            found += _field(before[name], after[name], at)
    return sorted(found)


def _field(old: Schema, new: Schema, at: str) -> list[str]:
    lost = [f"{at}: loses its default"] if "default" in old and "default" not in new else []
    return lost + violations(old["type"], new["type"], at)


def _symbols(old: Schema, new: Schema, path: str) -> list[str]:
    before, after = old.get("symbols", []), new.get("symbols", [])
    gone = [f"{path}: the symbol {symbol} is removed, logs may hold it" for symbol in before if symbol not in after]
    if set(after) - set(before) and old.get("default") is None:
        gone.append(f"{path}: symbols are added to an enum without a default, older readers cannot read them")
    if old.get("default") != new.get("default"):
        gone.append(f"{path}: the default symbol changes from {old.get('default')} to {new.get('default')}")
    return gone


def reads(writer: Schema, reader: Schema) -> str | None:
    """What fastavro says when ``reader`` reads what ``writer`` wrote; None when it can."""
    written, read = parse_schema(dict(writer)), parse_schema(dict(reader))
    body = BytesIO()
    schemaless_writer(body, written, generate_one(written))
    body.seek(0)
    try:
        schemaless_reader(body, written, read)
    except Exception as error:  # whichever of its classes
        return repr(error)
    return None
