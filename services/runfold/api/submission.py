"""The body of POST /api/runs: its grammar, and the command it becomes.

The grammar is closed: an unknown key is refused, for a misspelt limit would silently mean no limit. null means the same as an
absent key. Numbers are taken as written: true, "100" and 1.0 are not integers, and 0 is never a way to say "unlimited".
"""

import json
from decimal import Decimal
from difflib import get_close_matches
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfold.api.camel import camel
from runfold.api.grammar import EXACT, AnswerTokens, Input, Metadata, Name, Seconds, Steps, Tokens, Usd
from runfold.api.problems import SHOWN, Problem, invalid, shown
from runfold.core.events import Limits, RunRequested


class Submission(BaseModel):
    """A run that somebody asks for."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=camel)

    input: Input = Field(description="What the user says: the text of the first user message.")
    agent: Name = Field("default", description="Name of the agent to run, as the workers know it.")
    model: Name | None = Field(None, description="Model to ask instead of the agent's own.")
    max_tokens: AnswerTokens | None = Field(None, description="Most output tokens of one answer. Absent: the agent's own.")
    token_budget: Tokens | None = Field(None, description="Most tokens the run may use, cached ones included. Absent: no limit.")
    cost_ceiling_usd: Usd | None = Field(None, description="Most the run may cost, in US dollars. Absent: no limit.")
    timeout_seconds: Seconds | None = Field(None, description="From acceptance to the deadline. Absent: 86400 (a day).")
    max_steps: Steps | None = Field(None, description="Most model and tool steps together. Absent: 200.")
    progress_timeout_seconds: Seconds | None = Field(None, description="Longest time without a finished step. Absent: no limit.")
    metadata: Metadata | None = Field(None, description="Labels: stored, shown, without meaning to Runfold.")
    tenant: Name | None = Field(None, description="On whose behalf the run is made, for filters and reports.")

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what the body means: the order of keys, spaces, nulls and defaults make no difference."""
        meaning = self.model_dump(exclude_defaults=True)
        return sha256(json.dumps(meaning, sort_keys=True, default=_canonical).encode()).hexdigest()

    def command(self, run_id: str, digest: str | None = None) -> RunRequested:
        """The command that asks for this run under ``run_id``."""
        return RunRequested(
            run_id=run_id,
            agent=self.agent,
            input=self.input,
            limits=Limits(
                token_budget=self.token_budget,
                cost_ceiling=self.cost_ceiling_usd,
                timeout_ms=_milliseconds(self.timeout_seconds),
                max_steps=self.max_steps,
                progress_timeout_ms=_milliseconds(self.progress_timeout_seconds),
            ),
            model=self.model,
            max_tokens=self.max_tokens,
            metadata=self.metadata,
            tenant=self.tenant,
            request_digest=digest,
        )


_FIELDS = {camel(name) for name in Submission.model_fields}


def read(body: object) -> Submission:
    """The submission that parsed JSON holds. Raises `Problem` (422) that names the field."""
    if not isinstance(body, dict):
        raise Problem(422, "invalid_request", f"expected the body to be a JSON object, got {shown(body)}")
    for key in body:
        if key not in _FIELDS:
            raise _unknown(key)
    try:
        return Submission.model_validate({key: value for key, value in body.items() if value is not None})
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)[0]) from None


def _unknown(key: str) -> Problem:
    close = get_close_matches(key[:SHOWN], _FIELDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(_FIELDS))}"
    return Problem(422, "invalid_request", f"there is no field {shown(key)}; {hint}", field=key[:SHOWN])


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _canonical(amount: Decimal) -> str:
    return format(amount.normalize(EXACT), "f")
