"""Live text as the bytes of the side topic, and back.

Always Avro's single-object encoding (see `codec`): what is kept for minutes needs no registry. Readers skip what they do not
know.
"""

import json
from functools import cache
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from runfold.log.datum import fold, unfold
from runfold.log.schemas import Schema, fingerprint, root
from runfold.ports import LiveText

_datum, _piece = unfold(LiveText), fold(LiveText)


def encode(piece: LiveText) -> bytes:
    """The value of the record. What UTF-8 cannot hold is replaced: this is for eyes."""
    datum = _datum(piece)
    if not piece.text.isascii():
        datum["text"] = piece.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs that came apart
    out = BytesIO()
    out.write(_prefix())
    schemaless_writer(out, _schema(), datum)
    return out.getvalue()


def decode(value: bytes | None) -> LiveText | None:
    """None for whatever is not live text as this build knows it."""
    if value is None or not value.startswith(_prefix()):
        return None
    try:
        datum: Any = schemaless_reader(BytesIO(value[len(_prefix()) :]), _schema(), None)
        piece: LiveText = _piece(datum)
    except Exception:  # fastavro raises half a dozen unrelated classes on bad bytes
        return None
    return piece


def schema_of_live_text() -> Schema:
    """As it stands in its file."""
    schema: Schema = json.loads((root() / "live" / "LiveText.avsc").read_text(encoding="utf-8"))
    return schema


@cache
def _schema() -> Any:
    return parse_schema(schema_of_live_text())


@cache
def _prefix() -> bytes:
    return b"\xc3\x01" + fingerprint(schema_of_live_text())
