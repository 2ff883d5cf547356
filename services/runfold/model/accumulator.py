"""Puts one answer together from the events of its stream, value for value as received, in linear time.

A stream that breaks off or breaks its own rules never becomes an answer. Something this build does not know how to store exactly
is refused rather than stored in part.
"""

from typing import Any

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason, Usage
from runfold.model import exact_json
from runfold.model.failures import Fault, failure
from runfold.model.modifiers import modifiers_of
from runfold.ports import ModelAnswer

_APPENDED = {"text_delta": "text", "thinking_delta": "thinking"}  # delta type: the field of delta and block it lengthens


class Accumulator:
    """Feed it every event in order; `answer` is the message once the stream has ended."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._content: list[dict[str, Any]] = []
        self._open: dict[int, _OpenBlock] = {}
        self._usage: dict[str, Any] = {}
        self._started = self._stopped = False

    def feed(self, event: dict[str, Any]) -> None:
        """Take one event. Types of events it does not know mean nothing to the message and are passed over."""
        try:
            self._feed(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = f"the stream holds an event out of order or shape: {error!r}"
            raise failure(Reason.API_ERROR, said, Fault.MALFORMED_STREAM) from error

    def _feed(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self._start(event["message"])
            case "content_block_start":
                self._start_block(event["index"], dict(event["content_block"]))
            case "content_block_delta":
                self._open[event["index"]].feed(event["delta"])
            case "content_block_stop":
                self._open.pop(event["index"]).close()
            case "message_delta":
                self._message.update(event["delta"])
                self._count(event.get("usage"))
            case "message_stop":
                self._stopped = True

    def _start(self, message: dict[str, Any]) -> None:
        if self._started:
            raise ValueError("a second message_start")
        self._started = True
        self._message = dict(message)
        self._count(message.get("usage"))

    def _start_block(self, index: int, block: dict[str, Any]) -> None:
        if index != len(self._content):
            raise ValueError(f"block {index} after {len(self._content)} blocks")
        self._content.append(block)
        self._open[index] = _OpenBlock(block)

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Each report is the total so far, and may leave fields out."""
        self._usage.update((name, value) for name, value in (usage or {}).items() if value is not None)

    @property
    def usage(self) -> Usage | None:
        """What has been reported so far, None before the first report."""
        return usage_of(self._usage) if self._usage else None

    @property
    def model(self) -> str | None:
        """The model that answers, as it names itself."""
        named = self._message.get("model")
        return named if isinstance(named, str) and named else None

    @property
    def modifiers(self) -> dict[str, str] | None:
        return modifiers_of(self._usage)

    def answer(self, model: str, request_id: str | None) -> ModelAnswer:
        """The whole message. ``model`` is the one asked for, should the answer name none. Raises `ModelFailure` when the stream
        ended too early, or holds what JSON cannot."""
        stop_reason = self._message.get("stop_reason")
        if not (self._started and self._stopped) or self._open or not isinstance(stop_reason, str):
            raise failure(Reason.CONNECTION, "the stream ended before the message was complete", Fault.INCOMPLETE_STREAM)
        stop_details = self._message.get("stop_details")
        return ModelAnswer(
            content_json=_stored(self._content),
            stop_reason=stop_reason,
            usage=usage_of(self._usage),
            model=self._message.get("model") or model,
            stop_details_json=None if stop_details is None else _stored(stop_details),
            message_id=self._message.get("id"),
            request_id=request_id,
            modifiers=self.modifiers,
        )


class _OpenBlock:
    """One content block between its start and its stop; what arrives in pieces is joined once."""

    def __init__(self, block: dict[str, Any]) -> None:
        self._block = block
        self._pieces: dict[str, list[str]] = {}
        self._input: list[str] = []
        self._citations: list[Any] = []

    def feed(self, delta: dict[str, Any]) -> None:
        kind = delta["type"]
        if kind in _APPENDED:
            field = _APPENDED[kind]
            self._pieces.setdefault(field, [self._block.get(field) or ""]).append(delta[field])
        elif kind == "input_json_delta":
            self._input.append(delta["partial_json"])
        elif kind == "signature_delta":
            self._block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            self._citations.append(delta["citation"])
        else:
            raise _unsupported(f"a delta of type {kind!r}; a newer Runfold may know it")

    def close(self) -> None:
        for field, pieces in self._pieces.items():
            self._block[field] = "".join(pieces)
        if text := "".join(self._input):
            self._block["input"] = _tool_input(text)
        if self._citations:
            self._block["citations"] = [*(self._block.get("citations") or []), *self._citations]


def _tool_input(text: str) -> Any:
    """A tool's input as received: its JSON value, of any type; what is not JSON (cut off, a key twice, NaN) as a string."""
    try:
        return exact_json.loads(text)
    except ValueError:
        return text


def _stored(value: Any) -> str:
    try:
        return exact_json.dumps(value)
    except (ValueError, RecursionError) as error:
        raise _unsupported(f"a value that cannot be stored as JSON: {error}") from error


def _unsupported(what: str) -> ModelFailure:
    return failure(Reason.UNSUPPORTED_RESPONSE, f"the answer holds {what}", Fault.UNKNOWN_CONTENT)


def usage_of(reported: dict[str, Any]) -> Usage:
    """The API's usage object as our counters. Cache writes whose lifetime is not told count as five minutes."""
    split = reported.get("cache_creation")
    split = split if isinstance(split, dict) else {}
    one_hour = _tokens(split.get("ephemeral_1h_input_tokens"))
    five_minutes = _tokens(split.get("ephemeral_5m_input_tokens"))
    return Usage(
        input_tokens=_tokens(reported.get("input_tokens")),
        output_tokens=_tokens(reported.get("output_tokens")),
        cache_write_5m_tokens=max(five_minutes, _tokens(reported.get("cache_creation_input_tokens")) - one_hour),
        cache_write_1h_tokens=one_hour,
        cache_read_tokens=_tokens(reported.get("cache_read_input_tokens")),
    )


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
