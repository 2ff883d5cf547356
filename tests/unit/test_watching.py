"""What `runfold watch` prints of live text: in order, between the lines of steps, and taken back where it is void."""

import json
from typing import Any

import pytest

from runfold.cli.live import Paper
from runfold.ports import LiveEnd, LiveText

RUN = "6f1c0a52-8c1e-4b7e-9a51-0d2f6b1c7e10"


def said(seq: int, attempt: int, index: int, text: str = "", end: LiveEnd | None = None) -> LiveText:
    return LiveText(RUN, seq, attempt, index, text, end)


def step(seq: int, attempt: int, status: str, kind: str = "MODEL") -> tuple[dict[str, Any], str]:
    return {"seq": seq, "attempt": attempt, "status": status, "kind": kind}, f"seq={seq} {kind} {status}"


class Printed:
    """What a paper printed, as text or as documents."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    @property
    def text(self) -> str:
        return self._capsys.readouterr().out

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


def test_text_goes_on_where_it_ended_and_lines_stand_alone(printed: Printed) -> None:
    paper = Paper(as_json=False)
    paper.step(*step(1, 1, "STARTED"))
    for piece in (said(1, 1, 0, "Let me "), said(1, 1, 1, "think"), said(1, 1, 2, ".", LiveEnd.COMPLETE)):
        paper.tell(piece)
    paper.step(*step(1, 1, "DONE"))
    paper.step(*step(2, 1, "DONE", "TOOL"))
    paper.tell(said(3, 1, 0, "It is 42.\n"))
    paper.step(*step(3, 1, "DONE"))
    assert printed.text.splitlines() == [
        "seq=1 MODEL STARTED", "Let me think.", "seq=1 MODEL DONE", "seq=2 TOOL DONE", "It is 42.", "seq=3 MODEL DONE",
    ]  # fmt: skip


def test_a_piece_is_on_the_screen_at_once(printed: Printed) -> None:
    Paper(as_json=False).tell(said(1, 1, 0, "Let"))
    assert printed.text == "Let"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([said(1, 2, 0)], "superseded"),
        ([said(1, 3, 0, "…")], "superseded"),
        ([said(1, 1, 1, "", LiveEnd.FAILED), said(1, 2, 0)], "failed"),
        ([said(1, 1, 1, "", LiveEnd.CUT)], "cut off"),
    ],
)
def test_text_that_is_void_is_taken_back_once(printed: Printed, after: list[LiveText], why: str) -> None:
    paper, documents = Paper(as_json=False), Paper(as_json=True)
    for one in (paper, documents):
        one.tell(said(1, 1, 0, "Let me"))
    assert printed.text.startswith("Let me")
    for piece in after:
        paper.tell(piece)
    text = printed.text
    assert text.startswith(f"\nseq=1 MODEL attempt=1 {why}: what it said is void\n")
    assert text.count("void") == 1
    for piece in after:
        documents.tell(piece)
    assert [found for found in printed.documents if found["kind"] == "VOID"] == [
        {"kind": "VOID", "seq": 1, "attempt": 1, "why": why}
    ]


def test_nothing_is_taken_back_of_an_answer_that_was_whole_or_of_silence(printed: Printed) -> None:
    paper = Paper(as_json=False)
    for piece in (
        said(1, 1, 0, "whole", LiveEnd.COMPLETE), said(3, 1, 0, "", LiveEnd.FAILED), said(3, 2, 0), said(3, 2, 1, "now"),
        said(5, 1, 0, "next"),
    ):  # fmt: skip
        paper.tell(piece)
    assert printed.text == "whole\nnow\nnext"


def test_what_comes_too_late_or_again_is_not_printed(printed: Printed) -> None:
    """A frozen owner wakes up; a retry of the producer; text of a step that has ended."""
    paper = Paper(as_json=False)
    paper.tell(said(1, 2, 0, "second"))
    for piece in (said(1, 1, 9, "first"), said(1, 2, 0, "second")):
        paper.tell(piece)
    paper.step(*step(3, 1, "DONE"))
    for piece in (said(1, 2, 1, "old"), said(3, 1, 0, "old")):
        paper.tell(piece)
    paper.tell(said(5, 1, 0, "new"))
    assert printed.text.replace("\n", " ") == "second seq=3 MODEL DONE new"


def test_a_gap_is_seen(printed: Printed) -> None:
    paper = Paper(as_json=False)
    for piece in (said(1, 1, 0, "one"), said(1, 1, 2, "three")):
        paper.tell(piece)
    assert printed.text == "one[…]three"


def test_the_line_that_a_call_began_does_not_come_into_its_own_words(printed: Printed) -> None:
    paper = Paper(as_json=False)
    paper.tell(said(1, 1, 0, "Let me "))
    paper.step(*step(1, 1, "STARTED"))
    paper.tell(said(1, 1, 1, "think"))
    assert printed.text == "Let me think"


def test_a_terminal_obeys_nothing_that_a_model_says(printed: Printed) -> None:
    Paper(as_json=False).tell(said(1, 1, 0, "\x1b[2Jred\ralert\nnext\tcolumn"))
    assert printed.text == " [2Jred alert\nnext\tcolumn"


def test_as_json_each_piece_is_a_document(printed: Printed) -> None:
    paper = Paper(as_json=True)
    paper.tell(said(1, 1, 0, "Let\nme"))
    paper.tell(said(1, 1, 1, "", LiveEnd.COMPLETE))
    assert printed.documents == [
        {"kind": "TEXT", "runId": RUN, "seq": 1, "attempt": 1, "index": 0, "text": "Let\nme", "end": None},
        {"kind": "TEXT", "runId": RUN, "seq": 1, "attempt": 1, "index": 1, "text": "", "end": "COMPLETE"},
    ]
