"""When to try a failed model call again."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason
from runfold.ports import Model, ModelAnswer, ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How often to try, and how long to wait at most in between, in seconds."""

    attempts: int  # of one call, the first included
    base: float
    cap: float

    def ceiling(self, failures: int) -> float | None:
        """The longest pause after the ``failures``-th failure (from 1); None when that was the last attempt."""
        return None if failures >= self.attempts else min(self.cap, self.base * 2.0 ** min(failures - 1, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Full jitter, bounded; what the server asks for counts when it is longer.

    Failures are of two kinds, and each kind has its own count."""

    overloads: Backoff  # when the API says that it is overloaded
    mishaps: Backoff  # after any other failure
    retry_after_cap: float = 600.0  # seconds, of what a server may ask for

    def delay(self, failures: int, retry_after: float | None, draw: float, *, overloaded: bool = False) -> float | None:
        """How long to wait after the ``failures``-th failure of its kind (from 1), None when that was the last attempt.

        ``draw`` is a random number in [0, 1). Whether the failure can be cured by a repetition is the caller's to ask
        (`ModelFailure.retryable`).
        """
        ceiling = (self.overloads if overloaded else self.mishaps).ceiling(failures)
        return None if ceiling is None else max(draw * ceiling, min(retry_after or 0.0, self.retry_after_cap))


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
        failures: Counter[bool] = Counter()  # by whether they were overloads
        while True:
            try:
                return await self._model.complete(replace(request, attempt=request.attempt + failures.total()))
            except ModelFailure as failure:
                delay = self._delay(failure, failures) if failure.retryable else None
                if delay is None:
                    raise
            await self._sleep(delay)

    def _delay(self, failure: ModelFailure, failures: Counter[bool]) -> float | None:
        overloaded = failure.reason is Reason.OVERLOADED
        failures[overloaded] += 1
        return self._policy.delay(failures[overloaded], failure.retry_after, self._draw(), overloaded=overloaded)
