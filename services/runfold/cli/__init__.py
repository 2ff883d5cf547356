"""The command line: ``runfold``. Each command is in the module of its kind; `wiring` composes the processes."""

import logging
import sys
from typing import NoReturn

from pydantic import ValidationError

from runfold.cli.app import app
from runfold.core.errors import RunfoldError


def main() -> None:
    """Run a command; our own errors are one line on stderr and exit code 1, never a traceback."""
    try:
        app()
    except RunfoldError as error:
        _end(error)
    except ValidationError as error:
        sys.exit("\n".join(_settings_error(error)))


def _end(error: RunfoldError) -> NoReturn:
    """Say it as this process says everything: JSON, where its log is JSON."""
    if not logging.getLogger().hasHandlers():
        sys.exit(f"runfold: {error}")
    logging.getLogger("runfold").critical("%s", error)
    sys.exit(1)


def _settings_error(error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        lines.append(f"runfold: RUNFOLD_{name.upper()}: {problem['msg']}, got {problem['input']!r}")
    return lines
