"""One frozen settings object per process; the only reader of the environment.

Every field is an environment variable ``RUNFOLD_<FIELD>``; the command line overrides it. Units are in the names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runfold import legal

OURS = "RUNFOLD_"
ELSEWHERE = ("RUNFOLD_API", "RUNFOLD_TEST_")  # read by the command line and by the tests

Seconds = Annotated[float, Field(le=1_000_000_000, allow_inf_nan=False)]  # what every clock and every wait can take
Brokers = Annotated[str, AfterValidator(legal.brokers)]
Topic = Annotated[str, AfterValidator(legal.topic)]
Name = Annotated[str, AfterValidator(legal.name)]
Host = Annotated[str, AfterValidator(legal.host)]
Url = Annotated[str, AfterValidator(legal.url)]
Kafka = Annotated[dict[str, Any], AfterValidator(legal.kafka)]


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings and are none: a mistyped limit would be no limit."""
    known = {f"{OURS}{name.upper()}" for name in Settings.model_fields}
    return sorted(
        name for name in environment if name.startswith(OURS) and name not in known and not name.startswith(ELSEWHERE)
    )


class Settings(BaseSettings):
    """What a Runfold process is told from outside."""

    model_config = SettingsConfigDict(env_prefix="RUNFOLD_", frozen=True, extra="forbid")

    # the log
    bootstrap: Brokers = ""  # host:port[,host:port]; empty: none given
    topic: Topic = "runfold.runs"  # the log; dead letters are in <topic>.dead, text of calls under way is in <topic>.live
    group: Name = "runfold"  # the workers' consumer group
    namespace: Name = "runfold"  # first part of each transactional id: one per deployment on a shared cluster
    registry_url: Url = ""  # a Confluent-compatible schema registry; empty: single-object encoding
    kafka: Kafka = Field(default_factory=dict)  # JSON; passed to every Kafka client (security.protocol, sasl.*, ssl.*)
    session_timeout_ms: int = Field(6000, ge=500, le=3_600_000)  # how long a lost machine keeps its partitions
    heartbeat_ms: int = Field(250, ge=50)  # also how soon a planned hand-over is heard of: runs stand still until then
    transaction_timeout_ms: int = Field(10_000, ge=1000, le=86_400_000)  # of the broker, for what nobody ended
    min_retention_ms: int | None = Field(None, ge=1)  # the topic may forget after this or later; None: never
    # the projection
    dsn: str = ""  # postgresql://…; empty: none given
    # the worker
    max_model_calls: int = Field(256, ge=1)  # at the same time, per worker process
    max_tool_calls: int = Field(256, ge=1)  # the same
    overlap: bool = False  # begin what is harmless to repeat while the commit that led to it is under way
    drain_seconds: Seconds = Field(30, ge=0)  # for steps under way when a partition is let go; what takes longer is aborted
    live: bool = True  # show the text of model calls while it arrives, in <topic>.live
    # the model
    model_base_url: Url = ""  # of the Messages API or a gateway; empty: what the SDK's own environment says
    first_byte_seconds: Seconds = Field(90, gt=0)  # without a byte of an answer
    idle_seconds: Seconds = Field(600, gt=0)  # without new content; pings are not content
    model_attempts: int = Field(5, ge=1)  # of one model step, failures that may be transient
    backoff_base_seconds: Seconds = Field(1.0, gt=0)  # longest pause after the first failure; doubled by each further one
    backoff_cap_seconds: Seconds = Field(60.0, gt=0)  # longest pause of our own
    retry_after_cap_seconds: Seconds = Field(600.0, gt=0)  # longest pause that the server may ask for
    overload_attempts: int = Field(16, ge=1)  # of one model step, when the API says that it is overloaded
    overload_base_seconds: Seconds = Field(4.0, gt=0)  # longest pause after the first of these; doubled by each further one
    overload_cap_seconds: Seconds = Field(180.0, gt=0)  # longest pause after one of these
    breaker_failures: int = Field(10, ge=1)  # failures of a model in a row, of all runs, after which new calls of it wait
    breaker_pause_seconds: Seconds = Field(5.0, gt=0)  # until one call may try; doubled by each that fails
    breaker_cap_seconds: Seconds = Field(60.0, gt=0)  # the longest such pause
    prices: str = ""  # path of a JSON price list of your own, beside the shipped one; empty: none
    # the API
    host: Host = "127.0.0.1"  # the address that API and metrics listen on
    port: int = Field(8080, ge=0, le=65535)  # 0: a free one
    max_body_bytes: int = Field(1_000_000, ge=1000)  # of a request
    # the local stack
    cache_dir: Path = Path("~/.cache/runfold")  # Kafka's jars, fetched once
    maven_mirror: Url = ""  # URL of a Maven repository to fetch them from; empty: the public one
    # watching
    stalled_seconds: Seconds = Field(300, gt=0)  # without progress: a run counts as stalled; older tables make the API not ready
    log_format: Literal["auto", "console", "ecs"] = "auto"  # auto: console on a terminal, else ECS JSON
    metrics_port: int = Field(0, ge=0, le=65535)  # of worker and projector; 0: none

    @field_validator("heartbeat_ms")
    @classmethod
    def _several_in_a_session(cls, heartbeat_ms: int, others: ValidationInfo) -> int:
        """One heartbeat may be lost, and the next one late."""
        session_ms = others.data.get("session_timeout_ms")
        if session_ms is not None and 3 * heartbeat_ms > session_ms:
            raise ValueError(f"expected at most a third of RUNFOLD_SESSION_TIMEOUT_MS, {session_ms // 3} of {session_ms}")
        return heartbeat_ms
