"""The command line: ``runfold``. Each command is in the module of its kind; `wiring` composes the processes."""

import logging
import os
import sys
from typing import NoReturn

from runfold.cli.app import app
from runfold.core.errors import ConfigError, RunfoldError


def main() -> None:
    """Run a command; our own errors are one line on stderr and exit code 1, or 78 for a setting, never a traceback."""
    logging.getLogger("runfold.kafka").addHandler(logging.NullHandler())  # a command says itself what it did not get
    try:
        app()
    except RunfoldError as error:
        _end(error)


def _end(error: RunfoldError) -> NoReturn:
    """Say it as this process says everything: JSON, where its log is JSON."""
    code = os.EX_CONFIG if isinstance(error, ConfigError) else 1
    if logging.getLogger().hasHandlers():
        logging.getLogger("runfold").critical("%s", error)
    else:
        print(f"runfold: {error}", file=sys.stderr)
    sys.exit(code)
