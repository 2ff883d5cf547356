"""The clocks of a model call. The third one, the run's deadline, is the worker's: it cancels."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason
from runfold.model.failures import Fault, failure
from runfold.model.streaming import Event, Opened, StreamedModel
from runfold.ports import ModelRequest


class TimeLimited(StreamedModel):
    """Gives a call up, closes its connection and raises MODEL_TIMEOUT after

    - ``first_byte`` seconds without any event of the message or ping: nobody is there;
    - later, ``idle`` seconds without new content. Pings are not content; hidden thinking sends nothing else, for minutes.
    """

    def __init__(self, model: StreamedModel, first_byte: float, idle: float) -> None:
        self._model, self._first_byte, self._idle = model, first_byte, idle

    async def events(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        now = asyncio.get_running_loop().time
        begun = False
        deadline = now() + self._first_byte
        async with aclosing(self._model.events(request)) as events:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise self._verdict(begun) from None
                if not isinstance(event, Opened) and (not begun or event["type"] != "ping"):
                    begun = True
                    deadline = now() + self._idle
                yield event

    def _verdict(self, begun: bool) -> ModelFailure:
        if begun:
            said = f"no new content for {self._idle:g} s (pings are not content)"
            return failure(Reason.MODEL_TIMEOUT, said, Fault.NO_CONTENT)
        return failure(Reason.MODEL_TIMEOUT, f"no byte of an answer for {self._first_byte:g} s", Fault.NO_FIRST_BYTE)
