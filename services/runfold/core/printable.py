"""What models, tools and strangers wrote, as text that is safe to show: on a terminal, in a line of a log, in a table."""


def printable(text: str, *, keep: str = "") -> str:
    """``text`` as long as it is, with a space for each character that is not printable: nothing that a terminal obeys, no line
    end, no half of a surrogate pair. Those in ``keep`` stay."""
    return text if text.isprintable() else "".join(char if char.isprintable() or char in keep else " " for char in text)
