"""How large events are, before anybody encodes them."""

from runfold.core.events import (
    CommandRejected,
    ModelStepCompleted,
    OwnerEvent,
    RunFinished,
    RunResumed,
    RunSnapshotted,
    RunStarted,
    RunSuspended,
    ToolStepFinished,
    ToolStepStarted,
)

LARGEST_BYTES = 1_900_000  # of one event: what the log takes, with room for key and headers


def weight(event: OwnerEvent) -> int:
    """At least the bytes of an event on the wire, and not much more."""
    match event:
        case ModelStepCompleted():
            return _bytes(event.content_json) + _bytes(event.stop_details_json or "") + 5000
        case ToolStepStarted():
            return _bytes(event.input_json) + _bytes(event.name) + 2 * _bytes(event.tool_use_id) + 1000
        case ToolStepFinished():
            return _bytes(event.content_json) + _bytes(event.tool_use_id) + 1000
        case RunSuspended():
            return _bytes(event.tool_use_id or "") + 5000
        case CommandRejected() | RunResumed():
            return _bytes(event.command_id) + 1000
        case RunSnapshotted():
            return _bytes(event.state_json) + 1000
        case RunFinished():
            return _bytes(event.output) + 5000
        case RunStarted(definition=definition):
            parts = definition.name, definition.model, definition.system_json, definition.tools_json, definition.options_json
            return sum(map(_bytes, parts)) + 1000
        case _:
            return 5000


def fits(event: OwnerEvent) -> bool:
    """Whether the log takes the event at all."""
    return weight(event) <= LARGEST_BYTES


def _bytes(text: str) -> int:
    """An upper bound that is cheap for the usual, short text."""
    return 4 * len(text) if len(text) < 10_000 else len(text.encode("utf-8", "replace"))
