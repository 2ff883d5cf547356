"""What the fake was asked and what it said: every request, refused ones included."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from runfold.testing.fake_api.markers import unmarked


@dataclass(slots=True, kw_only=True)
class Hit:
    """One request. ``at`` is monotonic seconds."""

    number: int  # from 1
    at: float
    conversation: str = ""  # the text of the first user message
    turn: int = 0  # from 0
    body: Any = None  # decoded, None when it was no JSON
    status: int | None = None  # of the answer; None: nothing was answered
    answer: Any = None  # the message, the error, or what else was scripted
    complaint: str | None = None  # the broken rule
    complete: bool = False  # the scripted answer was sent to its end
    aborted: bool = False  # the client left before that

    @property
    def request_id(self) -> str:
        return f"req_{self.number}"

    @property
    def message(self) -> dict[str, Any]:
        """The message that was begun, empty when the answer was none."""
        return self.answer if self.status == 200 and isinstance(self.answer, dict) else {}


class Ledger:
    """Hits in order of arrival, and a way to wait for them."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self._changed = asyncio.Event()

    def open(self, at: float) -> Hit:
        hit = Hit(number=len(self.hits) + 1, at=at)
        self.hits.append(hit)
        return hit

    def changed(self) -> None:
        """Tell those who wait to look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._changed.wait()

    def repeated(self) -> list[Hit]:
        """Requests with the messages of an earlier one that got a whole message, not cut by max_tokens: paid for twice."""
        answered: set[str] = set()
        repeated = []
        for hit in self.hits:
            messages = repr(unmarked((hit.body or {}).get("messages")))
            if messages in answered:
                repeated.append(hit)
            if hit.complete and hit.message.get("stop_reason") not in (None, "max_tokens"):
                answered.add(messages)
        return repeated

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(hit) for hit in self.hits]
