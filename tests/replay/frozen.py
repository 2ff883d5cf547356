"""What a release wrote, kept for ever: ``bytes/<version>/<Name>.bin`` with its event as JSON, and ``schemas/<version>/``.

``python -m tests.replay.frozen`` freezes the version that the package has now, once; nothing here is ever edited afterwards.
"""

import json
import shutil
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from runfold.core.events import Event

HERE = Path(__file__).parent
BYTES, SCHEMAS = HERE / "bytes", HERE / "schemas"
CLASSES = {cls.__name__: cls for cls in get_args(Event)}


def to_json(event: Event) -> str:
    """An event for people and for `from_json`: money as text."""
    return json.dumps(asdict(event), default=str, ensure_ascii=False, indent=2) + "\n"


def from_json(name: str, text: str) -> Any:
    """The event that `to_json` wrote. Fields that came later take their defaults."""
    return _event(CLASSES[name], json.loads(text))


def _event(cls: Any, values: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    return cls(**{field.name: _value(hints[field.name], values[field.name]) for field in fields(cls) if field.name in values})


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, UnionType):
        hint = get_args(hint)[0]
    if hasattr(hint, "__dataclass_fields__"):
        return _event(hint, value)
    return hint(value) if isinstance(hint, type) and hint is not bool else value


def freeze(version: str, root: Path) -> None:
    """Write today's schemas and the samples' bytes as those of ``version``. Raises `FileExistsError` if that was done."""
    from runfold.log.codec import Codec

    from .samples import samples

    shutil.copytree(root / "schemas", SCHEMAS / version, ignore=shutil.ignore_patterns("older", "live"))
    (BYTES / version).mkdir(parents=True)
    for name, event in samples():
        (BYTES / version / f"{name}.bin").write_bytes(Codec().encode(event))
        (BYTES / version / f"{name}.json").write_text(to_json(event), encoding="utf-8")


if __name__ == "__main__":
    from importlib.metadata import version

    freeze(version("runfold"), HERE.parents[1])
    sys.stdout.write(f"frozen: {BYTES / version('runfold')} and {SCHEMAS / version('runfold')}\n")
