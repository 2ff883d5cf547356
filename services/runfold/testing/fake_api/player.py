"""Plays one scripted answer to one connection."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from runfold.testing import sse
from runfold.testing.fake_api.cache import PromptCache
from runfold.testing.fake_api.http import Connection
from runfold.testing.fake_api.ledger import Hit
from runfold.testing.script import NONCE, Answer, ErrorAnswer, Item


async def play(
    answer: Answer,
    hit: Hit,
    connection: Connection,
    hold: Callable[[str], Awaitable[None]],
    cache: PromptCache | None = None,
) -> bool:
    """Give ``answer`` and write it into ``hit``; ``hold(name)`` waits for a release. False: the connection is gone."""
    await asyncio.sleep(answer.delay)
    if answer.held is not None:
        await hold(answer.held)
    if answer.error is not None:
        return await _error(answer.error, hit, connection)
    if answer.message is not None:
        hit.answer = spoken(answer.message, hit.body["model"], hit.number)
        if cache is not None:
            hit.answer["usage"] |= cache.usage(hit.body)
        return await _stream(sse.message_events(hit.answer), hit, connection)
    if answer.stream is not None:
        hit.answer = {"stop_reason": _stop_reason(answer.stream)}
        return await _stream(answer.stream, hit, connection)
    if answer.silence == "hang":
        await asyncio.Event().wait()
    connection.reset()
    return False


def spoken(message: dict[str, Any], model: str, number: int) -> dict[str, Any]:
    """A scripted message as it is said on the ``number``-th hit."""
    whole = {"id": f"msg_{number}", "model": model, **message}
    said: dict[str, Any] = json.loads(json.dumps(whole).replace(NONCE, f"nonce-{number}"))
    return said


async def _error(error: ErrorAnswer, hit: Hit, connection: Connection) -> bool:
    hit.status = error.status
    hit.answer = error.body if error.body is not None else sse.error_event(error.type, error.message)
    await connection.respond(error.status, hit.answer, {"request-id": hit.request_id, **error.headers})
    return True


async def _stream(items: Iterable[Item], hit: Hit, connection: Connection) -> bool:
    hit.status = 200
    await connection.start_stream({"request-id": hit.request_id})
    for item in items:
        match item:
            case dict():
                await connection.send_event(item)
            case "reset":
                connection.reset()
                return False
            case "hang":
                await asyncio.Event().wait()
            case seconds:
                await asyncio.sleep(float(seconds))
    await connection.end_stream()
    return True


def _stop_reason(items: Iterable[Item]) -> str | None:
    """Of a stream that says it is whole."""
    events = [item for item in items if isinstance(item, dict)]
    if not any(event["type"] == "message_stop" for event in events):
        return None
    return next((event["delta"]["stop_reason"] for event in reversed(events) if event["type"] == "message_delta"), None)
