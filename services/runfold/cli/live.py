"""The live text of a run between the lines that `runfold watch` prints."""

import json
from dataclasses import asdict
from typing import Any

from runfold.config import Settings
from runfold.core.printable import printable
from runfold.log.kafka import KafkaLiveReader
from runfold.ports import LiveEnd, LiveReader, LiveText

Attempt = tuple[int, int]  # (seq, attempt): they only grow

_WHY_VOID = {LiveEnd.FAILED: "failed", LiveEnd.CUT: "cut off"}


def reader(settings: Settings, run_id: str, since: int) -> LiveReader | None:
    """None where there is no live text to be had: no Kafka was named, it does not answer, it has no side topic."""
    return KafkaLiveReader.open(settings, run_id, since) if settings.bootstrap else None


class Paper:
    """What has been printed. Text goes on where it ended; a line of its own ends it first.

    As JSON, a document a line: pieces are ``"kind": "TEXT"``, and ``"kind": "VOID"`` takes an attempt's text back."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._talking: Attempt = (0, 0)
        self._next = 0  # index of the piece that is due
        self._standing = False  # whether text of it was printed that may turn out to be void
        self._over: Attempt = (0, 0)  # whatever is told of it and of earlier ones comes too late
        self._within_a_line = False

    def line(self, text: str) -> None:
        print("\n" * self._within_a_line + text, flush=True)
        self._within_a_line = False

    def step(self, step: dict[str, Any], line: str) -> None:
        """A step of the timeline changed. The line that its model was called is left out once it talks."""
        attempt = (step["seq"], step["attempt"])
        ended = step["status"] != "STARTED"
        if ended and step["kind"] == "MODEL":
            self._over = max(self._over, attempt)
        if self._as_json or ended or attempt != self._talking:
            self.line(line)

    def tell(self, piece: LiveText) -> None:
        """Print a piece, unless it comes too late: its step ended, a later attempt has begun, or it was there already."""
        attempt = (piece.seq, piece.attempt)
        if attempt <= self._over or (attempt, piece.index) < (self._talking, self._next):
            return
        if attempt != self._talking:
            self._turn_to(attempt)
        self._print(piece)
        self._next, self._standing = piece.index + 1, self._standing or bool(piece.text)
        if piece.end is not None:
            self._end(piece.end)

    def _turn_to(self, attempt: Attempt) -> None:
        if self._standing and attempt[0] == self._talking[0]:
            self._take_back("superseded")
        elif self._within_a_line:
            print(flush=True)
        self._talking, self._next, self._standing, self._within_a_line = attempt, 0, False, False

    def _end(self, end: LiveEnd) -> None:
        self._over = self._talking
        if end in _WHY_VOID and self._standing:
            self._take_back(_WHY_VOID[end])
        self._standing = False

    def _take_back(self, why: str) -> None:
        seq, attempt = self._talking
        self._standing = False
        if self._as_json:
            self.line(json.dumps({"kind": "VOID", "seq": seq, "attempt": attempt, "why": why}))
        else:
            self.line(f"seq={seq} MODEL attempt={attempt} {why}: what it said is void")

    def _print(self, piece: LiveText) -> None:
        if self._as_json:
            self.line(json.dumps({"kind": "TEXT", **_document(piece)}))
            return
        text = ("" if piece.index == self._next else "[…]") + printable(piece.text, keep="\n\t")
        if text:
            print(text, end="", flush=True)
            self._within_a_line = not text.endswith("\n")


def _document(piece: LiveText) -> dict[str, Any]:
    document = asdict(piece)
    return {"runId": document.pop("run_id"), **document}
