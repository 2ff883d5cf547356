"""The keeper: the process that is the group member, runs no user code, and survives its worker.

It passes what the worker may own down a pipe, as `Grant`s, and hears back what the worker still holds. When the worker dies or
falls silent, the next one is forked from a server that has everything imported: no rebalance, no session timeout. After `DEATHS`
of them within `WINDOW` seconds the keeper leaves the group, so that others take over, and backs off.

The pipe is speed, not safety: what keeps a zombie out is the producer epoch and the generation in each transaction.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from runfold.ports import Grant, Membership
from runfold.worker.worker import Worker

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
REPEAT_SECONDS = 0.1  # an unchanged grant is said again: its age is what tells a worker that its keeper lives
FROZEN_SECONDS = 1.0  # between two looks at the worker: we were not running
DOUBT_SECONDS = 1.0  # of running again, until we would know of a lease that was lost while we stood still
SILENCE_SECONDS = 5.0  # a worker that has not answered for so long is replaced
START_SECONDS = 60.0  # before its first answer: it imports the app
CONFIG_EXIT = 78  # of a worker that its settings or its app keep from starting: the next one would fare no better
GRACE_SECONDS = 5.0  # beyond the worker's own drain limit; then it is killed
DEATHS, WINDOW, BACKOFF_SECONDS = 3, 60.0, (5.0, 60.0)

Hire = Callable[[], tuple[BaseProcess, Connection]]


class Keeper:
    """Hold the lease until `stop`. One thread, which alone touches the membership."""

    def __init__(self, membership: Callable[[], Membership], hire: Hire, drain_seconds: float, session_seconds: float) -> None:
        """``membership`` makes a seat that is not joined yet; ``hire`` starts a worker and returns our end of its pipe.

        ``session_seconds``: after so long without a heartbeat the group gives a seat's partitions to others.
        """
        self._seat, self._hire_one, self._grace = membership, hire, drain_seconds + GRACE_SECONDS
        self._doubt_after = session_seconds / 3  # together with the silence before and after, still no session
        self._stopping = self._unfit = self._going = False
        self._held: frozenset[int] = frozenset()  # what the worker may still work on
        self._orphaned: frozenset[int] = frozenset()  # what a worker died with, and its successor does not hold yet
        self._died_at = 0.0
        self._leaving: frozenset[int] = frozenset()
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._backoff = BACKOFF_SECONDS[0]
        self._said, self._doubt = Grant(), 0.0  # seconds of running that nothing is granted for
        self._news_at = 0.0  # of the grant that last said something new

    def stop(self) -> None:
        """Drain, leave and return from `run`. From a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Raises `LogError` when the seat is lost for good, `ConfigError` when it is refused, `SystemExit` when no worker can
        start: then the process must end, and the worker has ended."""
        self._hire()
        self._tended = time.monotonic()
        try:
            while not self._stopping:
                self._sit()
                if not self._stopping:
                    self._back_off()
        finally:  # also of an error: the process would wait for a worker that no signal ends
            self._pipe.close()  # the worker ends
            self._worker.join(GRACE_SECONDS)
            self._worker.kill()
        if self._unfit:
            raise SystemExit(CONFIG_EXIT)

    def _sit(self) -> None:
        """In the group, from joining it to leaving it."""
        self.membership, self._going = self._seat(), False
        self.membership.join(self._revoked)
        try:
            while not (self._stopping or self._crash_loop()):
                self.membership.poll(POLL_SECONDS)
                self._tend()
            self._let_finish()
        finally:  # also of an error: the process could not end with a seat that was not left
            self.membership.leave()  # the others own everything at once

    # ---- the worker

    def _hire(self) -> None:
        self._worker, self._pipe = self._hire_one()
        self._heard = time.monotonic()
        self._held, self._said, self._patience = frozenset(), Grant(), START_SECONDS

    def _tend(self) -> None:
        """Tell the worker what it may own, hear what it holds, replace it if it is dead or silent."""
        if self._unfit:
            return
        now = self._look_at_the_clock()
        try:
            self._say(now)
            while self._pipe.poll():
                self._hear(*self._pipe.recv())
        except (EOFError, OSError):
            self._replace("died", time.monotonic())
        if now > self._heard + self._patience:  # as of before it listened: since then it may itself have stood still
            self._replace("fell silent", self._heard)

    def _hear(self, at: float, held: frozenset[int]) -> None:
        """The worker's answer to the grant of ``at``. One that crossed with newer words does not say what became of them."""
        self._heard, self._patience = time.monotonic(), SILENCE_SECONDS
        if at >= self._news_at:
            self._held = held
        self._orphaned -= held

    def _look_at_the_clock(self) -> float:
        """Now. While the keeper itself stood still, frozen or backing off, it could hear neither its worker nor the group."""
        now = time.monotonic()
        gap, self._tended = now - self._tended, now
        if gap > FROZEN_SECONDS or self._doubt > 0:  # in doubt it is told nothing, and need not answer
            self._heard += gap
        self._doubt = DOUBT_SECONDS if gap > self._doubt_after else self._doubt - min(gap, REPEAT_SECONDS)
        return now

    def _say(self, now: float) -> None:
        """``now`` is from before: should we stand still in here, what we say is as old as what we know.

        In doubt nothing is granted, and what was granted gets no younger; what is taken away is said at once.
        """
        owned = self.membership.owned
        leaving = self._leaving | owned if self._going else self._leaving
        partitions, at = owned - leaving, now
        if self._doubt > 0:
            partitions, at = partitions & self._said.partitions, self._said.at
            if (partitions, leaving) == (self._said.partitions, self._said.leaving):
                return
        grant = Grant(partitions, leaving, self.membership.proof, at, self._orphaned & owned, self._died_at)
        if (partitions, leaving, grant.proof) != (self._said.partitions, self._said.leaving, self._said.proof):
            self._held, self._news_at = self._held | partitions, at
        elif now <= self._said.at + REPEAT_SECONDS:
            return
        self._pipe.send(grant)
        self._said = grant

    def _replace(self, what: str, at: float) -> None:
        """``at``: its last sign of life."""
        self._worker.kill()
        self._worker.join()
        self._pipe.close()
        pid, code = self._worker.pid, self._worker.exitcode
        if code == CONFIG_EXIT:
            log.error("worker process %s ended with exit code %s: no other would fare better, so none is started", pid, code)
            self._unfit = self._stopping = True
            self._held = frozenset()
            return
        log.error("worker process %s %s (exit code %s): the next one is started", pid, what, code)
        now = time.monotonic()
        if not self._deaths or now - self._deaths[-1] > WINDOW:
            self._backoff = BACKOFF_SECONDS[0]  # all was well for a while
        self._deaths.append(now)
        self._died_at = self._died_at if self._orphaned else at
        self._orphaned |= self._held
        self._hire()

    # ---- the group

    def _let_finish(self) -> None:
        """Before the seat is left: from then on nothing keeps it alive, and a step may take longer than a session without it."""
        self._going = True
        self._wait_for_release(lambda: self._held, self.membership.poll)

    def _revoked(self, partitions: frozenset[int]) -> None:
        """Heartbeats go on meanwhile; only the partitions' next owner waits for us."""
        self._leaving = partitions
        self._wait_for_release(lambda: self._held & partitions, lambda seconds: self._pipe.poll(seconds))
        self._leaving = frozenset()

    def _wait_for_release(self, held: Callable[[], frozenset[int]], pause: Callable[[float], object]) -> None:
        deadline = time.monotonic() + self._grace
        self._tend()
        while partitions := held():
            if time.monotonic() > deadline:
                log.error("partitions %s were not let go within %.0f s: the worker is killed", sorted(partitions), self._grace)
                self._replace("was killed", time.monotonic())
                break
            pause(POLL_SECONDS)
            self._tend()

    def _crash_loop(self) -> bool:
        return len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < WINDOW

    def _back_off(self) -> None:
        log.error("%d workers died within %.0f s: out of the group for %.0f s", DEATHS, WINDOW, self._backoff)
        until = time.monotonic() + self._backoff
        self._backoff = min(self._backoff * 2, BACKOFF_SECONDS[1])
        self._deaths.clear()
        self._orphaned = frozenset()  # others have them
        while time.monotonic() < until and not self._stopping:
            time.sleep(POLL_SECONDS)
        self._heard = self._tended = time.monotonic()  # we did not stand still: there was nobody to hear


async def attend(pipe: Connection, worker: Worker) -> None:
    """The worker's end of the pipe: follow the grants, answer each with what is held. A keeper that is gone ends the process."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), heard.set)
    while True:
        await heard.wait()
        heard.clear()
        try:
            while pipe.poll():
                worker.granted(grant := pipe.recv())
                pipe.send((grant.at, worker.held))
        except (EOFError, OSError):
            os._exit(0)
