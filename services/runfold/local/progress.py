"""How the local stack tells what takes long: it never prints, it calls what it was given."""

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done and how much of it; ``done == total`` ends it. In the thread that starts the stack."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """The progress of nobody who watches."""
