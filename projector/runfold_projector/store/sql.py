"""Statements by name, from ``queries.sql``: each begins with a line ``-- name: …`` and ends with a semicolon."""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def named_statements(text: str) -> dict[str, str]:
    """The statements of a file of named SQL, without their semicolons.

    >>> named_statements("-- name: one\\nselect 1;\\n")
    {'one': 'select 1'}
    """
    _, *parts = _NAME.split(text)
    return {name: body.strip().removesuffix(";") for name, body in zip(parts[::2], parts[1::2], strict=True)}


SQL = named_statements((files(__package__) / "queries.sql").read_text("utf-8"))
