"""The message list the model sees, rebuilt exactly from the log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the conversation; ``content_json`` is its array of content blocks as JSON text."""

    role: str  # "user" or "assistant"
    content_json: str
