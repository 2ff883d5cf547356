"""The body of POST /api/runs, and the command it becomes."""

import json
from decimal import Decimal
from hashlib import sha256

from pydantic import Field

from runfold.api.closed import Closed
from runfold.api.grammar import EXACT, AnswerTokens, Input, Metadata, Name, Seconds, Steps, Tokens, Usd
from runfold.core.events import Limits, OnBudget, RunRequested


class Submission(Closed):
    """A run that somebody asks for."""

    input: Input = Field(description="What the user says: the text of the first user message.")
    agent: Name = Field("default", description="Name of the agent to run, as the workers know it.")
    model: Name | None = Field(None, description="Model to ask instead of the agent's own.")
    max_tokens: AnswerTokens | None = Field(None, description="Most output tokens of one answer. Absent: the agent's own.")
    token_budget: Tokens | None = Field(None, description="Most tokens the run may use, cached ones included. Absent: no limit.")
    cost_ceiling_usd: Usd | None = Field(None, description="Most the run may cost, in US dollars. Absent: no limit.")
    on_budget: OnBudget = Field(OnBudget.SUSPEND, strict=False, description="At either limit the run is suspended, or fails.")
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
                on_budget=self.on_budget,
            ),
            model=self.model,
            max_tokens=self.max_tokens,
            metadata=self.metadata,
            tenant=self.tenant,
            request_digest=digest,
        )


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _canonical(amount: Decimal) -> str:
    return format(amount.normalize(EXACT), "f")
