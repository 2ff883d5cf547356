"""Where the projector meets the world: where records come from, and who watches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from runfold.core.errors import RunfoldError
from runfold.core.events import Delivery, Problem
from runfold.core.shard import Ignored


class Source(Protocol):
    """Committed records of all partitions of the topic. Blocking; one thread uses it.

    Every method raises `LogError` when the log cannot be read now, or not from there on; `TopicMismatch` when there is no such
    topic. Short outages of the broker are no error, only silence.
    """

    @property
    def partitions(self) -> int:
        """How many the topic has."""
        ...

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on. Called once, before the first `poll`."""
        ...

    def poll(self, timeout: float) -> Sequence[Delivery]:
        """What has come, in offset order within each partition; after ``timeout`` seconds without any: nothing.

        Returns as soon as there is something, with all that is there: at most some 10,000 records and 20 MB."""
        ...

    def reached(self) -> Mapping[int, int]:
        """By partition: `poll` has returned everything before this offset."""
        ...

    def ends(self) -> Mapping[int, int]:
        """By partition: where the log ends, as far as is known. Records that are not committed yet may count."""
        ...

    @property
    def heard_at(self) -> float:
        """When the log last answered, in seconds of CLOCK_MONOTONIC. What it held then, `ends` knows; of later nobody knows."""
        ...

    def beginnings(self, partitions: Iterable[int]) -> Mapping[int, int]:
        """Of these partitions: the oldest offset that the log still has."""
        ...

    def close(self) -> None: ...


class Observer(Protocol):
    """What the projector tells those who watch. Never raises, never blocks; called on the projector's thread."""

    def leading(self, leads: bool) -> None:
        """This projector writes from now on; or it stands by, because another one does."""
        ...

    def written(self, records: int, rows: int, seconds: float) -> None:
        """A batch is in the tables; ``seconds`` is what its transaction took."""
        ...

    def ignored(self, why: Ignored, records: int) -> None:
        """Records in the batch just written that changed no run."""
        ...

    def unreadable(self, problem: Problem, records: int) -> None:
        """Records in the batch just written that could not be read: each has a row of its own."""
        ...

    def retrying(self, error: RunfoldError, seconds: float) -> None:
        """The log or the database failed; the projector goes on from what is stored in ``seconds``."""
        ...


class Silence:
    """Nobody watches."""

    def leading(self, leads: bool) -> None: ...

    def written(self, records: int, rows: int, seconds: float) -> None: ...

    def ignored(self, why: Ignored, records: int) -> None: ...

    def unreadable(self, problem: Problem, records: int) -> None: ...

    def retrying(self, error: RunfoldError, seconds: float) -> None: ...


OpenSource = Callable[[], Source]
