"""A script played in this process, without HTTP: the same turns and the same events."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from itertools import count

from runfold.core.events import Reason
from runfold.model.failures import api_failure, failure
from runfold.model.streaming import Event, Opened, StreamedModel
from runfold.ports import ModelRequest
from runfold.testing import sse
from runfold.testing.fake_api.player import spoken
from runfold.testing.prompter import Prompter
from runfold.testing.script import Answer, Item, Script


class ScriptedStream(StreamedModel):
    """A model that plays ``scripts``: one, or several by what the first user message begins with.

    It checks no rules and holds nothing back; `FakeMessagesApi` does. For a model that costs nothing see `ScriptedModel`.
    """

    def __init__(self, scripts: Script | Mapping[str, Script]) -> None:
        self._prompter = Prompter({"": scripts} if isinstance(scripts, Script) else scripts)
        self._numbers = count(1)

    async def events(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        messages = [{"role": message.role, "content": json.loads(message.content_json)} for message in request.messages]
        cue = self._prompter.cue(messages)
        if cue.answer is None:
            raise failure(Reason.MODEL_REQUEST, f"no script foresees turn {cue.turn} of {cue.conversation!r}", http_status=400)
        number = next(self._numbers)
        await asyncio.sleep(cue.answer.delay)
        for item in _items(cue.answer, request.model, number):
            match item:
                case "hang":
                    await asyncio.Event().wait()
                case "reset":
                    raise failure(Reason.CONNECTION, "scripted reset")
                case {"type": "error"}:
                    raise api_failure(200, item, "scripted", {})
                case dict() | Opened():
                    yield item
                case seconds:
                    await asyncio.sleep(float(seconds))


def _items(answer: Answer, model: str, number: int) -> Iterable[Item | Opened]:
    if answer.error is not None:
        body = sse.error_event(answer.error.type, answer.error.message)
        raise api_failure(answer.error.status, body, "scripted", answer.error.headers)
    if answer.silence is not None:
        return [answer.silence]
    said = answer.stream if answer.message is None else sse.message_events(spoken(answer.message, model, number))
    return [Opened(f"req_{number}"), *(said or ())]
