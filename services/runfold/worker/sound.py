"""Whether the log can hold what came over the model port.

A gateway may send anything. An event that the log refuses would end the worker, and the next one that asks again too, so what
cannot be written down is a failure of the step, and what only explains a failure is made to fit.
"""

from typing import Any, TypeVar

from runfold.core.conversation import is_utf8
from runfold.core.errors import ModelFailure
from runfold.core.events import Reason, Usage
from runfold.ports import ModelAnswer
from runfold.worker.size import LARGEST_BYTES

LONGEST = 500  # characters of a name, an id, or an error's message as the log keeps it
MOST_TOKENS = 10**9  # of one kind in one answer: a thousand times what a model reads; dearer answers would not fit money's digits

M = TypeVar("M", str, str | None)


def sound(answer: ModelAnswer) -> ModelAnswer | ModelFailure:
    """The answer, if it can be written down. It has been paid for either way, so it is not asked for again."""
    if problem := _flaw(answer):
        return _refused(answer, Reason.INVALID_MODEL_RESPONSE, problem)
    if sum(len(text.encode()) for text in (answer.content_json, answer.stop_details_json or "")) > LARGEST_BYTES - 5_000:
        problem = f"the answer is larger than the {LARGEST_BYTES} bytes that one record of the log takes"
        return _refused(answer, Reason.UNSUPPORTED_RESPONSE, problem)
    return answer


def _refused(answer: ModelAnswer, reason: Reason, problem: str) -> ModelFailure:
    return ModelFailure(reason, problem, retryable=False, usage=answer.usage, request_id=answer.request_id)


def _flaw(answer: ModelAnswer) -> str | None:
    for name in ("stop_reason", "model", "message_id", "request_id"):
        value: Any = getattr(answer, name)
        optional = name.endswith("_id") and value is None
        if not (optional or (isinstance(value, str) and len(value) <= LONGEST and is_utf8(value))):
            return f"{name} must be text of at most {LONGEST} characters, got {_shown(value)}"
    if not (is_utf8(answer.content_json) and is_utf8(answer.stop_details_json or "")):
        return "its JSON holds what UTF-8 cannot"
    return None if _is_plausible(answer.usage) else f"its usage is none of this world: {_shown(answer.usage)}"


def tidy(failure: ModelFailure) -> ModelFailure:
    """The same failure with facts that fit."""
    failure.message = _cut(failure.message)
    failure.error_type, failure.request_id = _cut(failure.error_type), _cut(failure.request_id)
    if failure.usage is not None and not _is_plausible(failure.usage):
        failure.usage = None
    return failure


def _is_plausible(usage: Usage) -> bool:
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.cache_read_tokens,
    )
    return all(isinstance(count, int) and 0 <= count <= MOST_TOKENS for count in counts)


def _cut(text: M) -> M:
    return text if text is None else str(text)[:LONGEST].encode("utf-8", "replace").decode()


def _shown(value: object) -> str:
    return ascii(value)[:100]
