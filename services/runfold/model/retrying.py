"""When to try a failed model call again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from runfold.core.errors import ModelFailure
from runfold.ports import Model, ModelAnswer, ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Full jitter, bounded; what the server asks for counts when it is longer. All times in seconds."""

    attempts: int = 5  # of one call, the first included
    base: float = 1.0
    cap: float = 60.0  # of our own back-off
    retry_after_cap: float = 600.0  # of what a server may ask for

    def delay(self, failures: int, retry_after: float | None, draw: float) -> float | None:
        """How long to wait after the ``failures``-th failure in a row (from 1), None when that was the last attempt.

        ``draw`` is a random number in [0, 1). Whether the failure can be cured by a repetition is the caller's to ask
        (`ModelFailure.retryable`).
        """
        if failures >= self.attempts:
            return None
        ceiling = min(self.cap, self.base * 2.0 ** min(failures - 1, 64))
        return max(draw * ceiling, min(retry_after or 0.0, self.retry_after_cap))


class Retrying:
    """A model that tries again, for callers without a log. The worker does not use it: its attempts are events."""

    def __init__(
        self,
        model: Model,
        policy: RetryPolicy,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._model, self._policy, self._sleep, self._draw = model, policy, sleep, draw

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Raises the last attempt's `ModelFailure`. ``request.attempt`` is that of the first one."""
        failures = 0
        while True:
            try:
                return await self._model.complete(replace(request, attempt=request.attempt + failures))
            except ModelFailure as failure:
                failures += 1
                delay = self._policy.delay(failures, failure.retry_after, self._draw()) if failure.retryable else None
                if delay is None:
                    raise
            await self._sleep(delay)
