"""A quick `dataclasses.replace`, which is most of what a fold does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(old: Any, **changes: Any) -> Any:
        """`dataclasses.replace` for classes without slots, six times as fast: evolve does little else."""
        new = object.__new__(old.__class__)
        new.__dict__.update(old.__dict__, **changes)
        return new
