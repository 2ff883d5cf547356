"""Docstrings as tool descriptions: what stands under ``Args:`` describes the parameters, everything else the tool."""

import inspect
import re
from itertools import takewhile

_ARGS = re.compile(r"^(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")  # "limit (int, optional): at most so many"


def describe(docstring: str | None) -> tuple[str, dict[str, str]]:
    """(description of the tool, description of each parameter). Without an ``Args:`` section the docstring is left whole."""
    text = inspect.cleandoc(docstring or "").strip()
    heading = _ARGS.search(text)
    if heading is None:
        return text, {}
    section = list(takewhile(_inside, text[heading.end() + 1 :].splitlines()))
    rest = text[heading.end() + 1 :].splitlines()[len(section) :]
    about = "\n\n".join(part for part in (text[: heading.start()].strip(), "\n".join(rest).strip()) if part)
    return about, _parameters(inspect.cleandoc("\n" + "\n".join(section)))


def _inside(line: str) -> bool:
    return not line or line[0].isspace()


def _parameters(section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if (start := _PARAMETER.match(line)) is not None:
            name = start[1]
            found[name] = start[2].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return {name: text for name, text in found.items() if text}
