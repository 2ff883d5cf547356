"""A keeper that stood still may have lost its lease without knowing: what it says then, and what not (`runfold.worker.lease`).

No time passes but what the test says, and the group says what the test says; the worker's end of a real pipe is read after each
look at the group.
"""

import math
import time
from collections.abc import Callable
from itertools import count, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import cast

import pytest

from runfold.ports import Grant
from runfold.worker import lease
from runfold.worker.lease import DOUBT_SECONDS, POLL_SECONDS, Keeper

SESSION = 6.0
FROZEN = SESSION / 3 + 0.01  # just long enough for doubt
BEATS = round(DOUBT_SECONDS / POLL_SECONDS)  # looks at the group that make up the doubt


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Process:
    """What a keeper sees of a worker process."""

    exitcode = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


class Seat:
    """A membership that does as the stage says."""

    owned = frozenset[int]()

    def __init__(self, poll: Callable[[float], None]) -> None:
        self.poll = poll
        self.revoked: Callable[[frozenset[int]], None] = lambda partitions: None

    @property
    def proof(self) -> bytes:
        return b"proof"

    def join(self, revoked: Callable[[frozenset[int]], None]) -> None:
        self.revoked = revoked

    def leave(self) -> None: ...


class Stage:
    """`play` runs a keeper through looks at the group: each is what happens in one, from the last look to its end."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seat = clock, Seat(self._poll)
        self.keeper = Keeper(lambda: self.seat, self._hire, drain_seconds=0.0, session_seconds=SESSION)
        self.heard: list[list[Grant]] = []  # after each look
        self.hire_seconds = 0.0
        self._workers: list[Connection] = []
        self._pids = count(1)

    def play(self, *looks: Callable[[], object]) -> list[list[Grant]]:
        self._looks = iter(looks)
        self.keeper.run()
        first, *others = self.heard  # the first is before any look
        assert first == []
        return others[: len(looks)]

    def _poll(self, timeout: float) -> None:
        self.heard.append(self._listen())
        self.clock.now += timeout
        next(self._looks, self.keeper.stop)()

    def _listen(self) -> list[Grant]:
        """What the worker has been told; it holds what it is granted, and says so."""
        heard, pipe = [], self._workers[-1]
        while pipe.poll():
            heard.append(grant := pipe.recv())
            pipe.send((grant.at, grant.partitions))
        return heard

    def _hire(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = Pipe()
        self._workers.append(theirs)
        self.clock.now += self.hire_seconds
        return cast(BaseProcess, Process(next(self._pids))), ours

    # ---- what can happen in a look

    def nothing(self) -> None: ...

    def own(self, *partitions: int) -> Callable[[], None]:
        def given() -> None:
            self.seat.owned = frozenset(partitions)

        return given

    def freeze(self, seconds: float = FROZEN) -> Callable[[], None]:
        return lambda: self.clock.sleep(seconds)

    def die(self) -> None:
        self._workers[-1].close()

    def revoke(self, *partitions: int) -> Callable[[], None]:
        """The worker lets them go as soon as it is asked to."""

        def asked_back() -> None:
            self.seat.owned -= frozenset(partitions)
            self._workers[-1].send((math.inf, self.seat.owned))
            self.seat.revoked(frozenset(partitions))

        return asked_back


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return Stage(clock)


def granted(heard: list[list[Grant]]) -> list[set[int]]:
    """What each grant named, in order."""
    return [set(grant.partitions) for grants in heard for grant in grants]


def test_the_clock_is_the_tests_own(stage: Stage) -> None:
    began = time.monotonic()
    stage.play(stage.own(0), *[stage.freeze(1000)] * 5)
    assert stage.clock.now > 6000
    assert time.monotonic() - began < 100


def test_one_that_looks_in_time_says_again_and_again_what_it_granted(stage: Stage) -> None:
    heard = stage.play(stage.own(0), *[stage.nothing] * BEATS)
    assert set(map(frozenset, granted(heard))) == {frozenset({0})}
    times = [grant.at for grants in heard for grant in grants]
    assert len(times) > 5
    assert all(0 < later - earlier < 0.2 for earlier, later in pairwise(times))


def test_one_that_stood_still_says_nothing_until_it_has_run_long_enough(stage: Stage) -> None:
    heard = stage.play(stage.own(0), stage.freeze(), *[stage.nothing] * (BEATS + 5))
    assert granted(heard[:1]) == [{0}]
    assert granted(heard[1:BEATS]) == [], "what it still owns may be another's by now"
    assert granted(heard[BEATS:])[0] == {0}


def test_one_that_stood_still_for_less_goes_on(stage: Stage) -> None:
    heard = stage.play(stage.own(0), stage.freeze(SESSION / 3 - 0.05), stage.nothing)
    assert granted(heard) == [{0}, {0}]


def test_what_is_given_in_doubt_is_granted_after_it(stage: Stage) -> None:
    heard = stage.play(stage.own(0), stage.freeze(), stage.own(0, 1), *[stage.nothing] * (BEATS + 5))
    assert granted(heard[1:BEATS]) == []
    assert granted(heard[BEATS:])[0] == {0, 1}


def test_what_is_lost_is_said_at_once(stage: Stage) -> None:
    heard = stage.play(stage.own(0), stage.freeze(), stage.own(), stage.nothing)
    assert granted(heard[2:3]) == [set()]


def test_what_is_left_of_a_loss_gets_no_younger_by_it(stage: Stage) -> None:
    """Nor is anything added: a worker takes the age of a grant for the age of what its keeper knows."""
    heard = stage.play(stage.own(0, 1), stage.freeze(), stage.own(1, 2), *[stage.nothing] * (BEATS + 5))
    (first,), (less,) = heard[0], heard[2]
    assert (less.partitions, less.at) == (frozenset({1}), first.at)
    assert granted(heard[3:BEATS]) == []
    assert granted(heard[BEATS:])[0] == {1, 2}


def test_what_is_asked_back_is_said_at_once(stage: Stage) -> None:
    heard = stage.play(stage.own(0, 1), stage.freeze(), stage.revoke(0), stage.nothing)
    (first,), (less, least) = heard[0], heard[2]
    assert (less.partitions, less.leaving, less.at) == (frozenset({1}), frozenset({0}), first.at)
    assert (least.partitions, least.leaving, least.at) == (frozenset({1}), frozenset(), first.at), "it is gone altogether"


def test_standing_still_again_in_doubt_does_not_shorten_it(stage: Stage) -> None:
    short = stage.freeze(SESSION / 3 - 0.05)
    heard = stage.play(stage.own(0), stage.freeze(), short, short, *[stage.nothing] * BEATS)
    assert granted(heard[1:30]) == []
    assert granted(heard)[-1] == {0}, "it ends"


def test_the_next_worker_is_granted_nothing_in_doubt(stage: Stage) -> None:
    heard = stage.play(stage.own(0), stage.freeze(), stage.die, *[stage.nothing] * (BEATS + 5))
    assert granted(heard[1:BEATS]) == []
    assert granted(heard[BEATS:])[0] == {0}


def test_standing_still_while_the_next_worker_is_hired_counts(stage: Stage) -> None:
    def die_and_hire_slowly() -> None:
        stage.hire_seconds = FROZEN
        stage.die()

    heard = stage.play(stage.own(0), die_and_hire_slowly, *[stage.nothing] * (BEATS + 5))
    assert granted(heard[1:BEATS]) == []
    assert granted(heard[BEATS:])[0] == {0}


def test_one_that_stood_still_after_it_had_listened_replaces_nobody(stage: Stage) -> None:
    """The worker was not silent: nobody listened."""

    def stand_still_after_listening() -> None:
        pipe = stage.keeper._pipe

        def poll(timeout: float | None = 0.0) -> bool:
            if found := Connection.poll(pipe, timeout):
                return found
            stage.clock.sleep(lease.SILENCE_SECONDS + 1)
            del pipe.poll  # once
            return False

        pipe.poll = poll  # type: ignore[method-assign]

    stage.play(stage.own(0), stage.nothing, stage.nothing, stand_still_after_listening, *[stage.nothing] * (BEATS + 5))
    assert len(stage._workers) == 1


def test_a_shorter_session_is_lost_sooner(stage: Stage) -> None:
    stage.keeper = Keeper(lambda: stage.seat, stage._hire, drain_seconds=0.0, session_seconds=1.5)
    heard = stage.play(stage.own(0), stage.freeze(0.6), *[stage.nothing] * (BEATS + 5))
    assert granted(heard[1:BEATS]) == []
    assert granted(heard[BEATS:])[0] == {0}


@pytest.mark.parametrize("stopped_at", ["owned", "proof"])
def test_a_grant_is_never_younger_than_the_last_look_at_the_clock(stage: Stage, stopped_at: str) -> None:
    """The keeper may be stopped between any two of its instructions, also while it puts a grant together."""
    looked: list[float] = []
    facts = {"owned": frozenset({0}), "proof": b"proof"}

    def stopped(seat: Seat) -> object:
        looked.append(stage.clock.now)
        stage.clock.sleep(FROZEN)
        return facts[stopped_at]

    stage.seat = type("Stopped", (Seat,), {"owned": frozenset({0}), stopped_at: property(stopped)})(stage.seat.poll)
    ((grant,), *_) = stage.play(stage.nothing)
    assert grant.at == looked[0]
