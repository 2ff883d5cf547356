"""Finds the answer a conversation is due, from the conversation alone: no restart of anything confuses it.

Which script: by the text of the first user message. Which turn: by the number of answers in the messages. Which answer of the
turn: by how often this very turn of this very conversation was asked for; only that is remembered here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runfold.testing.script import Answer, Script


@dataclass(frozen=True, slots=True)
class Cue:
    """``answer`` is None when no script, or none of its turns, fits."""

    conversation: str  # the text of the first user message
    turn: int  # from 0
    nth: int  # time of asking, from 0
    answer: Answer | None


class Prompter:
    """``scripts`` by what the first user message begins with; the longest fitting key wins, "" fits all."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = {key: _Part(script) for key, script in sorted(scripts.items(), key=lambda item: -len(item[0]))}
        self._asked: Counter[tuple[str, int]] = Counter()

    def cue(self, messages: Sequence[Mapping[str, Any]]) -> Cue:
        """``messages`` as a request holds them."""
        conversation = text_of(messages[0]["content"])
        part = self._part(conversation)
        turn = part.turn(messages) if part else 0
        nth = self._asked[conversation, turn]
        self._asked[conversation, turn] += 1
        return Cue(conversation, turn, nth, part.answer(turn, nth) if part else None)

    def paused(self, messages: Sequence[Mapping[str, Any]]) -> list[bool]:
        """For each assistant message: whether the answer it ends with was a pause."""
        part = self._part(text_of(messages[0]["content"]))
        return part.paused(messages) if part else []

    def _part(self, conversation: str) -> "_Part | None":
        return next((part for key, part in self._scripts.items() if conversation.startswith(key)), None)


class _Part:
    """One script, read by turn."""

    def __init__(self, script: Script) -> None:
        self._turns, self._endless = script.turns(), script.endless

    def answer(self, turn: int, nth: int) -> Answer | None:
        if turn >= len(self._turns) and not self._endless:
            return None
        answers = self._turns[min(turn, len(self._turns) - 1)]
        return answers[min(nth, len(answers) - 1)]

    def turn(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return sum(len(turns) for turns in self._spoken(messages))

    def paused(self, messages: Sequence[Mapping[str, Any]]) -> list[bool]:
        return [self._pause(turns[-1]) for turns in self._spoken(messages)]

    def _spoken(self, messages: Sequence[Mapping[str, Any]]) -> list[range]:
        """The turns each assistant message holds: one, or several that were paused one after the other."""
        spoken: list[range] = []
        for message in messages:
            if message["role"] == "assistant":
                first = spoken[-1].stop if spoken else 0
                spoken.append(range(first, self._stop(first, len(message["content"]))))
        return spoken

    def _stop(self, turn: int, blocks: int) -> int:
        while self._pause(turn) and blocks > (size := self._size(turn)):
            turn, blocks = turn + 1, blocks - size
        return turn + 1

    def _pause(self, turn: int) -> bool:
        return self._message(turn).get("stop_reason") == "pause_turn"

    def _size(self, turn: int) -> int:
        return max(1, len(self._message(turn)["content"]))

    def _message(self, turn: int) -> dict[str, Any]:
        last = self.answer(turn, len(self._turns))
        return (last and last.message) or {}


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block.get("type") == "text")
