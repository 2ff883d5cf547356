"""How large events are, before anybody encodes them."""

from runfold.core.events import (
    ModelStepCompleted,
    OwnerEvent,
    RunFinished,
    RunSnapshotted,
    RunStarted,
    ToolStepFinished,
    ToolStepStarted,
)

LARGEST_BYTES = 1_900_000  # of one event: what the log takes, with room for key and headers


def weight(event: OwnerEvent) -> int:
    """At least the bytes of an event on the wire, and not much more."""
    match event:
        case ModelStepCompleted() | ToolStepFinished():
            return _bytes(event.content_json) + 1000
        case ToolStepStarted():
            return _bytes(event.input_json) + 1000
        case RunSnapshotted():
            return _bytes(event.state_json) + 1000
        case RunFinished():
            return _bytes(event.output) + 3000
        case RunStarted(definition=definition):
            return _bytes(definition.system_json) + _bytes(definition.tools_json) + _bytes(definition.options_json) + 1000
        case _:
            return 3000


def fits(event: OwnerEvent) -> bool:
    """Whether the log takes the event at all."""
    return weight(event) <= LARGEST_BYTES


def _bytes(text: str) -> int:
    """An upper bound that is cheap for the usual, short text."""
    return 4 * len(text) if len(text) < 10_000 else len(text.encode("utf-8", "replace"))
