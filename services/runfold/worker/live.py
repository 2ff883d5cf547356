"""The text of a model call as it is heard, told to those who watch: joined for a moment, numbered, and let go."""

import asyncio
import logging
from collections.abc import Callable

from runfold.core.events import ModelStepStarted
from runfold.ports import Live, LiveEnd, LiveText

BATCH_SECONDS = 0.05  # what eyes take for at once

log = logging.getLogger(__name__)


class Telling:
    """One attempt of a model step, whose start is in the log. Nothing here raises or waits; without ``live`` nothing is told.

    A second attempt begins with an empty piece: from there on the text of the first one is void, whoever told it. An attempt
    of which nothing was told has no end either.
    """

    def __init__(self, live: Live | None, start: ModelStepStarted) -> None:
        self._live, self._start = live, start
        self._index = 0
        self._heard: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        if start.attempt > 1:
            self._tell()

    @property
    def heard(self) -> Callable[[str], None] | None:
        """For `ModelRequest.heard`."""
        return None if self._live is None else self._hear

    def end(self, how: LiveEnd) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._index or self._heard:
            self._tell(how)

    def _hear(self, text: str) -> None:
        self._heard.append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._tell)

    def _tell(self, end: LiveEnd | None = None) -> None:
        if self._live is None:
            return
        start = self._start
        piece = LiveText(start.run_id, start.seq, start.attempt, self._index, "".join(self._heard), end)
        self._timer, self._index = None, self._index + 1
        self._heard.clear()
        try:
            self._live.show(piece)
        except Exception:  # a fault of ours: the call that is shown has been paid for, and goes on
            log.exception("the live port raised what it must not")
