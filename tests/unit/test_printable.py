"""What others wrote, shown."""

import sys

import pytest

from runfold.core.printable import printable

EVERY = "".join(map(chr, range(sys.maxunicode + 1)))


@pytest.mark.parametrize("text", ["", "plain", "Żółw 🐢 …"])
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    assert printable("\x1b[2J red\r\n\x9b1m \u202e\u2028") == " [2J red   1m   "
    assert printable("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc "


@pytest.mark.parametrize("keep", ["", "\n\t"])
def test_of_every_character_there_is_a_printable_one_is_made_that_can_be_encoded(keep: str) -> None:
    shown = printable(EVERY, keep=keep)
    assert len(shown) == len(EVERY), "so that a cut by length stands, before or after"
    assert all(char.isprintable() or char in keep for char in set(shown))
    assert shown.encode().decode() == shown
