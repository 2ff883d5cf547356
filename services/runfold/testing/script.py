"""What a model will say: a script of turns, written fluently, good for JSON.

    Script().then_fail(529).then_tool_use("toolu_1", "search", {"q": "x"}, 812, 64).then_text("Nothing is overdue.", 1210, 140)

An answer that cannot end a turn (an error, a hang, a reset, a stream without its end) belongs to the turn that follows it: here
the first request of turn 0 is told 529, the second one gets the tool call. A turn that is asked for again after its last answer
gets that one again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from runfold.testing import sse

NONCE = "{{nonce}}"  # in any text of a message: another value on each hit

# What a stream is made of: an event, a pause in seconds, or how the connection ends. Default: a clean end.
Item = dict[str, Any] | float | Literal["hang", "reset"]

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 408,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
}
_TYPE = {status: error_type for error_type, status in _STATUS.items()} | {422: "invalid_request_error", 504: "timeout_error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """An HTTP error; ``body`` None is the API's usual error object."""

    status: int
    type: str
    message: str
    headers: dict[str, str]
    body: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request gets: exactly one of the first four is set."""

    message: dict[str, Any] | None = None
    stream: tuple[Item, ...] | None = None
    error: ErrorAnswer | None = None
    silence: Literal["hang", "reset"] | None = None
    held: str | None = None  # the answer waits until this name is released
    delay: float = 0.0  # seconds before the answer begins
    ends_turn: bool = True


@dataclass(frozen=True)
class Script:
    """Answers in order. Every method returns a longer script; none changes this one."""

    answers: tuple[Answer, ...] = ()
    endless: bool = False

    # ---- answers

    def then_text(self, text: str, input_tokens: int = 10, output_tokens: int = 5) -> "Script":
        """A final answer."""
        return self.then_message([{"type": "text", "text": text}], "end_turn", usage(input_tokens, output_tokens))

    def then_tool_use(
        self, tool_use_id: str, name: str, tool_input: Any, input_tokens: int = 10, output_tokens: int = 5
    ) -> "Script":
        """One tool call. ``tool_input`` may be any JSON value, also one the API would never send."""
        return self.then_tools([(tool_use_id, name, tool_input)], input_tokens, output_tokens)

    def then_tools(
        self, calls: Iterable[tuple[str, str, Any]], input_tokens: int = 10, output_tokens: int = 5, *, text: str | None = None
    ) -> "Script":
        """Several tool calls (id, name, input) in one turn, ``text`` before them."""
        said = [{"type": "text", "text": text}] if text is not None else []
        blocks = [{"type": "tool_use", "id": call_id, "name": name, "input": value} for call_id, name, value in calls]
        return self.then_message([*said, *blocks], "tool_use", usage(input_tokens, output_tokens))

    def then_message(
        self, content: Sequence[dict[str, Any]], stop_reason: str, usage: dict[str, Any] | None = None, **fields: Any
    ) -> "Script":
        """Any message. ``usage`` as the API spells it; ``fields``: ``model`` (default: the one asked for), ``stop_details``.
        A block may hold ``partial_json`` instead of ``input``: text sent as it stands, JSON or not."""
        usage = usage or {"input_tokens": 10, "output_tokens": 5}
        return self._then(Answer(message={"content": list(content), "stop_reason": stop_reason, "usage": usage, **fields}))

    def then_sse(self, *items: Item) -> "Script":
        """A stream, word for word (`runfold.testing.sse` has the events); numbers are pauses in seconds, ``"hang"``
        and ``"reset"`` end it otherwise than cleanly. It ends the turn if it holds ``message_stop``."""
        whole = any(isinstance(item, dict) and item.get("type") == "message_stop" for item in items)
        return self._then(Answer(stream=items, ends_turn=whole))

    def then_ping(self, every: float = 0.5, times: int = 1000) -> "Script":
        """The beginning of a message, then pings only."""
        pings: list[Item] = [every, sse.PING] * times
        return self.then_sse(sse.message_start(), *pings)

    def then_fail(
        self,
        error: int | str,
        message: str = "scripted",
        *,
        retry_after: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> "Script":
        """An HTTP error, by status or by error type; ``body`` replaces the API's error object."""
        status, error_type = (_STATUS[error], error) if isinstance(error, str) else (error, _TYPE.get(error, "api_error"))
        more = {} if retry_after is None else {"retry-after": str(retry_after)}
        failure = ErrorAnswer(status=status, type=error_type, message=message, headers={**(headers or {}), **more}, body=body)
        return self._then(Answer(error=failure, ends_turn=False))

    def then_hang(self) -> "Script":
        """The request is read and nothing comes back."""
        return self._then(Answer(silence="hang", ends_turn=False))

    def then_reset(self) -> "Script":
        """The connection is reset before any answer."""
        return self._then(Answer(silence="reset", ends_turn=False))

    # ---- how the last answer is given

    def held(self, name: str) -> "Script":
        """It waits until ``name`` is released."""
        return self._last(held=name)

    def after(self, seconds: float) -> "Script":
        """It takes its time."""
        return self._last(delay=seconds)

    def again(self) -> "Script":
        """It does not end its turn: the next answer is for whoever asks the same once more (an answer cut by max_tokens)."""
        return self._last(ends_turn=False)

    def for_ever(self) -> "Script":
        """Later turns are as the last one."""
        return replace(self, endless=True)

    def _then(self, answer: Answer) -> "Script":
        return replace(self, answers=(*self.answers, answer))

    def _last(self, **changes: Any) -> "Script":
        return replace(self, answers=(*self.answers[:-1], replace(self.answers[-1], **changes)))

    # ---- reading it

    def turns(self) -> list[list[Answer]]:
        """The answers of each turn, in order of asking."""
        turns: list[list[Answer]] = [[]]
        for answer in self.answers:
            turns[-1].append(answer)
            if answer.ends_turn:
                turns.append([])
        return turns if turns[-1] else turns[:-1]

    def to_json(self) -> dict[str, Any]:
        return {"answers": [_spare(asdict(answer)) for answer in self.answers], "endless": self.endless}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Script":
        return cls(tuple(_answer(answer) for answer in value["answers"]), value.get("endless", False))


def usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {"input_tokens": input_tokens, "output_tokens": output_tokens}


def _spare(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if value is not None}


def _answer(value: dict[str, Any]) -> Answer:
    value = dict(value)
    if "stream" in value:
        value["stream"] = tuple(value["stream"])
    if "error" in value:
        value["error"] = ErrorAnswer(**value["error"])
    return Answer(**value)
