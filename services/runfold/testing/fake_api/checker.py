"""Whether the API would take a request: by itself, and after what was said in its conversation before.

One object for the fake and for tests that have no use for HTTP.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from runfold.testing.fake_api.markers import unmarked
from runfold.testing.fake_api.rules import complaints, thinking

Body = dict[str, Any]


class Checker:
    """Remembers conversations by a name of the caller's. ``unique_ids`` as in `complaints`."""

    def __init__(self, *, unique_ids: bool = True) -> None:
        self._unique_ids = unique_ids
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # prefixes that were sent, by conversation
        self._thoughts: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)  # what thinking each turn was answered with

    def complaint(self, body: Body, paused: Sequence[bool] = ()) -> str | None:
        """The first rule that ``body`` breaks by itself."""
        return next(complaints(body, unique_ids=self._unique_ids, paused=paused), None)

    def drift(self, body: Body, conversation: str, turn: int) -> str | None:
        """How ``body``, which asks for the turn number ``turn`` (from 0), changes what was said before. If it does not, it counts
        as sent."""
        messages = body["messages"]
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is not None and (sent := self._sent.get(conversation)) and _prefix(body, messages[:last]) not in sent:
            return "Invalid `signature` in `thinking` block. The block is bound to a different conversation"
        thoughts = self._thoughts.get((conversation, turn - 1))
        if thoughts and last is not None and unmarked(thinking(messages[last])) not in thoughts:
            return "thinking blocks in the latest assistant message cannot be modified"
        self._sent[conversation].add(_prefix(body, messages))
        return None

    def answered(self, conversation: str, turn: int, content: Sequence[dict[str, Any]]) -> None:
        """What the client must send back as it was."""
        self._thoughts[conversation, turn].append(thinking({"content": list(content)}))


def _prefix(body: Body, messages: Sequence[Any]) -> str:
    """A digest of what thinking is bound to: values, not their spelling, and no markers."""
    parts = [unmarked(part) for part in (body.get("system"), body.get("tools"), list(messages))]
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
