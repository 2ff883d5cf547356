"""Holds new calls of a model back while it does nothing but fail: one breaker per worker and model.

After so many transient failures in a row, of whichever runs, the breaker *opens*: runs that want to call the model wait, and no
attempt of theirs is used up. When the pause is over it is *half open*: one call is let through. If it fails, the next pause is
twice as long; whatever else the API says closes the breaker, and all go on.

Lives on the event loop, like `runfold.worker.slots.Slots`, which it is asked beside.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from runfold.core.errors import ModelFailure

log = logging.getLogger(__name__)

LONGEST_TRIAL = 120.0  # seconds: a call that was let through and of which nothing is heard by then does not count any more

Poke = Callable[[], None]


class Timers(Protocol):
    """What the breaker needs of an event loop."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object]) -> object: ...

    def call_soon(self, callback: Callable[[], object]) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """Times in seconds."""

    failures: int = 10  # transient ones in a row, of all runs, that open it
    pause: float = 5.0  # the first; doubled by each call that fails after one
    cap: float = 60.0  # the longest


class Breakers:
    """The breakers of a worker, by model. ``told(model, held)`` hears of each that opens or closes."""

    def __init__(
        self,
        policy: BreakerPolicy = BreakerPolicy(),
        told: Callable[[str, bool], None] = lambda model, held: None,
        timers: Timers | None = None,
    ) -> None:
        self._policy, self._told, self._timers = policy, told, timers
        self._breakers: dict[str, _Breaker] = {}

    def admits(self, model: str, who: Hashable, poke: Poke) -> bool:
        """Whether a call may be made now. If not, ``poke`` is called when it may be; then ask again."""
        breaker = self._breakers.get(model)
        return breaker is None or breaker.admits(who, poke)

    def started(self, model: str) -> None:
        """A call that was admitted is made."""
        if (breaker := self._breakers.get(model)) is not None:
            breaker.started()

    def heard(self, model: str, failure: ModelFailure | None) -> None:
        """How a call ended; None: with an answer."""
        breaker = self._breakers.get(model)
        if failure is not None and failure.retryable:
            if breaker is None:
                timers = self._timers or asyncio.get_running_loop()
                breaker = self._breakers[model] = _Breaker(model, self._policy, self._told, timers)
            breaker.failed(failure)
        elif breaker is not None:
            del self._breakers[model]
            breaker.close()

    def given_up(self, model: str) -> None:
        """A call was cancelled: nothing is known of the model."""
        if (breaker := self._breakers.get(model)) is not None:
            breaker.given_up()


class _Breaker:
    """Of one model, from its first failure to its next sign of life."""

    def __init__(self, model: str, policy: BreakerPolicy, told: Callable[[str, bool], None], timers: Timers) -> None:
        self._model, self._policy, self._told, self._timers = model, policy, told, timers
        self._failures = 0
        self._pause = policy.pause
        self._until: float | None = None  # open up to then, half open afterwards; None: closed
        self._on_trial = False
        self._waiting: dict[Hashable, Poke] = {}

    def admits(self, who: Hashable, poke: Poke) -> bool:
        if self._until is None or self._timers.time() >= self._until:
            self._waiting.pop(who, None)
            return True
        if who not in self._waiting:
            log.info("run=%s waits for model %s, which fails", str(who)[:8], self._model, extra={"runfold.run.id": str(who)})
        self._waiting[who] = poke
        return False

    def started(self) -> None:
        if self._until is not None:
            self._on_trial = True
            self._hold(LONGEST_TRIAL)

    def failed(self, failure: ModelFailure) -> None:
        self._failures += 1
        if self._until is None and self._failures >= self._policy.failures:
            said = "model %s: %d calls in a row failed, the last one with %s; further ones wait"
            log.warning(said, self._model, self._failures, failure.reason)
            self._told(self._model, True)
            self._hold(self._pause)
        elif self._on_trial:
            self._pause = min(self._pause * 2, self._policy.cap)
            self._hold(self._pause)
            self._on_trial = False

    def given_up(self) -> None:
        if self._on_trial:
            self._on_trial = False
            self._hold(0.0)

    def close(self) -> None:
        if self._until is not None:
            log.warning("model %s answers again", self._model)
            self._told(self._model, False)
        self._until = None
        self._timers.call_soon(self._serve)

    def _hold(self, seconds: float) -> None:
        self._until = self._timers.time() + seconds
        self._timers.call_at(self._until, self._serve)

    def _serve(self) -> None:
        """Poke those who wait as long as one would be admitted: the first who starts a call ends it, while half open."""
        while self._waiting and (self._until is None or self._timers.time() >= self._until):
            self._waiting.pop(next(iter(self._waiting)))()
