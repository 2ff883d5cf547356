"""Directories that somebody names: where they are, and what to say when nothing can be kept there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from runfold.core.errors import StackError


def absolute(directory: Path) -> Path:
    """From the root on, ~ resolved. StackError: nobody knows where it is."""
    try:
        return directory.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # the latter of somebody who has no home
        raise _unkept(directory, error) from None


@contextlib.contextmanager
def keeping(directory: Path) -> Iterator[None]:
    """What is done to files of `directory` inside the block. StackError where the system does not allow it."""
    try:
        yield
    except OSError as error:
        raise _unkept(directory, error) from error


def _unkept(directory: Path, error: Exception) -> StackError:
    return StackError(f"nothing can be kept in {directory}: {error}; mend it or choose another directory")
