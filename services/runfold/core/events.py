"""Everything that can stand in the log, in the words of the log: the Python side of the Avro contract in ``schemas/``.

One frozen dataclass per record type; field names and order are those of ``schemas/<Name>.avsc`` (a test holds them together).
Times are broker milliseconds since the epoch. Texts named ``*_json`` hold JSON exactly as received or as sent. Money is
``Decimal`` US dollars with at most 12 fractional digits. Who may write what:

- *commands* (`Command`): anyone;
- *events* (`OwnerEvent`): only the owner of the partition, inside a fenced transaction; ``epoch`` is the offset of the
  `LeaseAcquired` they were written under.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Status(StrEnum):
    """Where a run stands. The last four are final: no later record changes the run."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.TIMED_OUT})


class Reason(StrEnum):
    """Why a run has its status: one meaning each."""

    UNSPECIFIED = "UNSPECIFIED"  # the default symbol: what a reader sees of a reason newer than itself
    FINAL_ANSWER = "FINAL_ANSWER"
    CANCEL = "CANCEL"
    DEADLINE = "DEADLINE"
    NO_PROGRESS = "NO_PROGRESS"
    BUDGET = "BUDGET"  # token budget or cost ceiling reached
    STEP_CAP = "STEP_CAP"
    # what the model answered cannot be continued
    REFUSAL = "REFUSAL"
    CONTEXT_WINDOW = "CONTEXT_WINDOW"
    MAX_TOKENS = "MAX_TOKENS"  # truncated again and again
    INVALID_MODEL_RESPONSE = "INVALID_MODEL_RESPONSE"  # breaks the Messages API's own rules
    UNKNOWN_STOP_REASON = "UNKNOWN_STOP_REASON"
    UNSUPPORTED_RESPONSE = "UNSUPPORTED_RESPONSE"  # holds something this build cannot store exactly
    # the model call failed
    MODEL_REQUEST = "MODEL_REQUEST"  # 400, 413, 422: this request is wrong
    MODEL_ACCESS = "MODEL_ACCESS"  # 401, 402, 403, 404, spend limit: every request would be refused
    RATE_LIMITED = "RATE_LIMITED"  # 429
    OVERLOADED = "OVERLOADED"  # 529, or overloaded_error inside a stream
    API_ERROR = "API_ERROR"  # 408, 409 and 5xx
    CONNECTION = "CONNECTION"  # refused, reset, cut off before the answer was complete
    MODEL_TIMEOUT = "MODEL_TIMEOUT"  # one of the clocks of a model call ran out
    # something in Runfold's own house
    UNKNOWN_AGENT = "UNKNOWN_AGENT"
    CONFIG = "CONFIG"  # the agent's definition cannot be used
    PREFIX_DRIFT = "PREFIX_DRIFT"  # the conversation as rebuilt is not the one that was sent before
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"  # a tool that cannot be repeated died halfway
    CRASH_LOOP = "CRASH_LOOP"  # a step keeps killing its worker
    APPROVAL = "APPROVAL"
    UNREADABLE_RECORD = "UNREADABLE_RECORD"
    NEEDS_NEWER_VERSION = "NEEDS_NEWER_VERSION"  # a view of a build that cannot read all of the run, never in the log
    HISTORY_LOST = "HISTORY_LOST"  # the log has lost the run's beginning: the projection's view, never in the log


class SideEffect(StrEnum):
    """What a tool does to the world outside the run."""

    NONE = "NONE"
    READ = "READ"
    WRITE = "WRITE"
    EXTERNAL = "EXTERNAL"


class ToolStatus(StrEnum):
    """How a tool call ended. All but DONE reach the model with ``is_error``."""

    DONE = "DONE"
    ERROR = "ERROR"
    TIMED_OUT = "TIMED_OUT"
    DENIED = "DENIED"


class Rejection(StrEnum):
    """Why a command had no effect."""

    UNSPECIFIED = "UNSPECIFIED"
    RUN_FINISHED = "RUN_FINISHED"
    NOT_SUSPENDED = "NOT_SUSPENDED"


class OnBudget(StrEnum):
    """What becomes of a run that its token budget or cost ceiling stops."""

    SUSPEND = "SUSPEND"  # the default symbol: it waits for a higher limit
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the requester allows a run. None is the documented default, never "zero"."""

    token_budget: int | None = None  # input + cache write + cache read + output tokens, of failed attempts too; default: none
    cost_ceiling: Decimal | None = None  # USD; default: none
    timeout_ms: int | None = None  # from RunRequested's broker time; default: DEFAULT_TIMEOUT_MS
    max_steps: int | None = None  # model and tool steps together, the highest seq; default: DEFAULT_MAX_STEPS
    progress_timeout_ms: int | None = None  # default: none
    on_budget: OnBudget = OnBudget.SUSPEND


DEFAULT_TIMEOUT_MS = 24 * 3600 * 1000
DEFAULT_MAX_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model answer as the API reports them: ``input_tokens`` excludes cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def total(self) -> int:
        """What counts against a token budget."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_write_5m_tokens
            + self.cache_write_1h_tokens
            + self.cache_read_tokens
        )

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_write_5m_tokens=self.cache_write_5m_tokens + other.cache_write_5m_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """An agent as a run has it, frozen when the run starts: no deploy changes a running run."""

    name: str
    model: str
    max_tokens: int  # of one answer
    system_json: str  # array of system blocks, may be "[]"
    tools_json: str  # array of tool definitions as the API takes them, may be "[]"
    options_json: str  # object of further request fields (thinking, output_config, tool_choice …), may be "{}"
    cache_ttl: str = "5m"  # of the marker on the system blocks: "5m" or "1h"; "off": nothing is marked for the API's cache
    hash: str  # sha256 of the above, hex


# ---- commands: anyone writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequested:
    run_id: str  # canonical lower-case UUID text, also the Kafka key
    agent: str
    input: str
    limits: Limits = Limits()
    model: str | None = None  # instead of the agent's own
    max_tokens: int | None = None  # instead of the agent's own
    metadata: dict[str, str] | None = None
    tenant: str | None = None
    request_digest: str | None = None  # of the request body, where an idempotency key made the run id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelRequested:
    run_id: str
    command_id: str
    requested_by: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumeRequested:
    """Let a suspended run go on. What is None stays as it is; a tool whose outcome is unknown is called again, under its key."""

    run_id: str
    command_id: str
    requested_by: str
    detail: str = ""
    token_budget: int | None = None  # the run's new limits
    cost_ceiling: Decimal | None = None
    max_steps: int | None = None


# ---- events: only the owner writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired:
    """The fold is complete up to here and its writer owns the partition: its own offset is the lease's epoch."""

    partition: int
    worker: str
    build: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    run_id: str
    epoch: int
    definition: AgentDefinition
    deadline: int  # broker ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStepStarted:
    run_id: str
    epoch: int
    seq: int  # from 1, shared with tool steps
    attempt: int  # from 1; every start of this step counts, also of workers that died
    prefix_digest: str  # of definition and messages, hex
    reserved_tokens: int  # max_tokens of the request
    reserved_cost: Decimal | None = None  # USD, of these and of the prompt as far as its size is known; None: no price


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStepCompleted:
    run_id: str
    epoch: int
    seq: int
    attempt: int
    content_json: str  # array of content blocks, as received
    stop_reason: str
    stop_details_json: str | None
    usage: Usage
    cost: Decimal | None  # None: the model has no known price
    model: str
    message_id: str | None
    request_id: str | None
    latency_ms: int
    modifiers: dict[str, str] | None = None  # what else the price depends on, as reported: service tier, speed, place …


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStepFailed:
    run_id: str
    epoch: int
    seq: int
    attempt: int
    reason: Reason
    http_status: int | None
    error_type: str | None
    message: str  # cut, free of key material
    retry_at: int | None  # broker ms; None: final
    usage: Usage | None  # wasted, where known
    request_id: str | None
    latency_ms: int
    cost: Decimal | None = None  # of usage; None: there is none, or it has no known price


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStepStarted:
    run_id: str
    epoch: int
    seq: int
    model_seq: int  # of the model step that asked for it
    tool_use_id: str
    name: str
    input_json: str  # object
    idempotency_key: str  # <run id>/<model_seq>/<tool_use_id>
    attempt: int
    side_effect: SideEffect
    repeatable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStepFinished:
    run_id: str
    epoch: int
    seq: int
    model_seq: int
    tool_use_id: str
    attempt: int
    status: ToolStatus
    content_json: str  # a JSON string, or an array of content blocks: what the model will see
    latency_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuspended:
    run_id: str
    epoch: int
    reason: Reason
    detail: str  # what would wake it, for people
    tool_use_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """A suspended run goes on, with these limits; starts of the step it stood at are counted anew."""

    run_id: str
    epoch: int
    command_id: str
    token_budget: int | None
    cost_ceiling: Decimal | None
    max_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    run_id: str
    epoch: int
    status: Status
    reason: Reason
    detail: str
    output: str
    command_id: str | None  # of the command that ended it
    steps: int
    usage: Usage
    cost: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRejected:
    run_id: str
    epoch: int
    command_id: str
    reason: Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAborted:
    """The owner let go of its partition as planned, an attempt took longer than it could wait, and was aborted. The step is due
    again, and nothing is said against it. Of calls that cannot be repeated none is written: their outcome is not known."""

    run_id: str
    epoch: int
    seq: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshotted:
    """An open run as its owner had it: a fold may begin here. Readers that fold from the run's beginning pass it over."""

    run_id: str
    epoch: int
    last_offset: int  # of the last record that the state includes
    state_version: int
    state_json: str  # an owner's own affair, see runfold.core.snapshot


Command = RunRequested | RunCancelRequested | RunResumeRequested
RunEvent = (
    RunStarted
    | ModelStepStarted
    | ModelStepCompleted
    | ModelStepFailed
    | ToolStepStarted
    | ToolStepFinished
    | StepAborted
    | RunSuspended
    | RunResumed
    | RunFinished
    | CommandRejected
    | RunSnapshotted
)
OwnerEvent = LeaseAcquired | RunEvent
Event = Command | OwnerEvent


@dataclass(frozen=True, slots=True)
class Record:
    """An event and where it stands: ``timestamp`` is the broker's (LogAppendTime, ms)."""

    event: Event
    partition: int
    offset: int
    timestamp: int


class Problem(StrEnum):
    """Why a record of the log cannot be applied."""

    NULL_VALUE = "NULL_VALUE"
    NO_KEY = "NO_KEY"
    WRONG_KEY = "WRONG_KEY"  # the key is not the run id of the value, or no canonical UUID
    MISROUTED = "MISROUTED"  # the key belongs to another partition
    MALFORMED = "MALFORMED"  # not Avro in a known framing, truncated, trailing bytes
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"  # written with a schema this build does not have


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of the log that this build cannot turn into an event."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    problem: Problem
    detail: str
    type_header: bytes | None = None  # what the record says it is
    from_owner: bool = False  # it stands in the name of an owner of the partition, by a header that only owners set


Delivery = Record | Unreadable
