"""What goes wrong in the store, in our own words."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from runfold.core.errors import RunfoldError


class StoreError(RunfoldError):
    """The database did not do what it was asked: connect again and go on from what is stored."""


class Overtaken(StoreError):
    """Another projector moved a partition on meanwhile."""


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise `StoreError` for whatever psycopg raises while ``doing`` something."""
    try:
        yield
    except psycopg.Error as error:
        raise StoreError(f"{doing}: {type(error).__name__}: {str(error).strip()}") from error
