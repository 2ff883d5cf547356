"""A model whose answer arrives as a stream: events in, one answer out.

What happens *during* a call (clocks) wraps the events, a live view hears them; what happens to a call as a whole (retries)
wraps `complete`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from runfold.core.errors import ModelFailure
from runfold.model.accumulator import Accumulator
from runfold.ports import ModelAnswer, ModelRequest


@dataclass(frozen=True, slots=True)
class Opened:
    """The server has begun to answer; nothing of the message is there yet."""

    request_id: str | None


Event = Opened | dict[str, Any]  # a dict is an event of the Messages API, pings included, error events not


class StreamedModel(ABC):
    """A `runfold.ports.Model` that is made of its events."""

    @abstractmethod
    def events(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        """The events of one call, as they arrive: `Opened` first, ``message_stop`` last. Raises `ModelFailure`.

        Closing the generator, or cancelling the task that waits for it, closes the connection."""

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        message = Accumulator()
        request_id = None
        try:
            async with aclosing(self.events(request)) as events:
                async for event in events:
                    if isinstance(event, Opened):
                        request_id = event.request_id
                    else:
                        message.feed(event)
                        if request.heard is not None and (text := _text(event)):
                            request.heard(text)
            return message.answer(request.model, request_id)
        except ModelFailure as failure:
            if failure.usage is None:
                failure.usage, failure.model, failure.modifiers = message.usage, message.model, message.modifiers
            failure.request_id = failure.request_id or request_id
            raise


def _text(event: dict[str, Any]) -> str:
    """What an event adds to the answer's text."""
    match event:
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            return text
        case {"type": "content_block_start", "content_block": {"type": "text", "text": str(text)}}:
            return text
        case _:
            return ""
