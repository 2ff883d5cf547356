"""The errors Runfold raises. Each message says what was expected, what came and what to do; facts are attributes.

RunfoldError
├── ConfigError           a setting or an agent definition cannot be used
├── DecodeError           bytes that are not one of our records (``problem`` says which way)
├── TopicMismatch         the topic is not what Runfold needs
├── TooLarge              more than fits into one append or one record; nothing was written
├── StackError            the local Kafka or PostgreSQL cannot be had
├── LogError              the log refused or did not answer; outcome unknown unless said otherwise
│   ├── Fenced            a newer owner of the partition exists
│   ├── Expelled          the group no longer knows this member or generation
│   └── LogUnavailable    timeout, broker away, anything transient
├── ReadUnavailable       the projection cannot be read now
└── ModelFailure          one attempt of a model call failed (``reason`` says how, ``retryable`` whether to try again)

Three more stand beside what alone raises them: `runfold_projector.store.StoreError`, `runfold.audit.files.ExportError` and
`runfold.cli.client.ApiError`.
"""

from runfold.core.events import Problem, Reason, Usage


class RunfoldError(Exception):
    """Base of everything Runfold raises on purpose."""


class ConfigError(RunfoldError):
    """A setting or an agent definition cannot be used."""


class DecodeError(RunfoldError):
    """Bytes that are not one of our records."""

    def __init__(self, problem: Problem, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem, self.detail = problem, detail


class TopicMismatch(RunfoldError):
    """The topic is not what Runfold needs."""


class TooLarge(RunfoldError):
    """Events that do not fit into one append, or a command into one record. Nothing was written; append fewer at once."""


class StackError(RunfoldError):
    """The local Kafka or PostgreSQL cannot be had."""


class LogError(RunfoldError):
    """The log refused or did not answer: whether the append took place only the log can tell."""


class Fenced(LogError):
    """A newer owner of the partition exists."""


class Expelled(LogError):
    """The group no longer knows this member or generation. ``proof`` is the refused one."""

    def __init__(self, message: str, proof: bytes) -> None:
        super().__init__(message)
        self.proof = proof


class LogUnavailable(LogError):
    """Timeout, broker away, anything transient or unclear."""


class ReadUnavailable(RunfoldError):
    """The projection cannot be read now: its database is away, or too far behind."""


class ModelFailure(RunfoldError):
    """One attempt of a model call failed."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        retryable: bool,
        http_status: int | None = None,
        error_type: str | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
        model: str | None = None,
        modifiers: dict[str, str] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.retryable = reason, message, retryable
        self.http_status, self.error_type, self.request_id = http_status, error_type, request_id
        self.retry_after, self.usage = retry_after, usage  # seconds as the server asked; tokens wasted, where known
        self.model, self.modifiers = model, modifiers  # who used them, and what else their price depends on, as reported
