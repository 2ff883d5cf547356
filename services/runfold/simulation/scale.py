"""Limits that only a long log meets, made small, so that a short one meets them: snapshots, bounded folds, full transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from runfold.core import shard
from runfold.worker import carrier, lane

SMALL: tuple[tuple[ModuleType, str, int], ...] = (
    (shard, "OVERLAP", 20),
    (carrier, "BEHIND", 30),
    (carrier, "BEHIND_BYTES", 20_000),
    (carrier, "FACTOR", 2),
    (carrier, "LOOK_EVERY", 10),
    (carrier, "MARK_EVERY", 1_000),
    (lane, "MOST_BYTES", 20_000),
    (lane, "MOST_EVENTS", 4),
)


@contextmanager
def scaled(small: bool) -> Iterator[None]:
    """Within it limits are small, if they are to be."""
    before = [(module, name, getattr(module, name)) for module, name, _ in SMALL]
    for module, name, value in SMALL if small else ():
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)
