"""The keeper: it holds the lease, tells its worker what it may own, and replaces it (`runfold.worker.lease`).

The group is the memory broker's, the workers are threads behind real pipes that do as the test says.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

import pytest

from runfold.core.errors import LogError
from runfold.log.memory import MemoryMembership
from runfold.log.memory.group import Group
from runfold.ports import Grant
from runfold.worker import lease
from runfold.worker.lease import CONFIG_EXIT, Keeper, attend
from runfold.worker.worker import Worker

PATIENCE = 20.0
SILENCE = 0.4


class Stub:
    """A worker process, or what its keeper sees of one. It holds what it is granted, and lets go of what is not."""

    def __init__(self, changed: threading.Condition, pid: int, slow: frozenset[int], mute: bool) -> None:
        self.pid, self.exitcode, self.died = pid, None, 0.0
        self.grants: list[Grant] = []
        self.slow = slow  # partitions that it does not let go
        self.mute = mute  # it does not answer
        self._changed = changed
        self.ours, self._pipe = Pipe()
        self._dead = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def grant(self) -> Grant:
        return self.grants[-1] if self.grants else Grant()

    @property
    def held(self) -> frozenset[int]:
        return self.grant.partitions | (self.slow & self.grant.leaving)

    def _work(self) -> None:
        while not self._dead.is_set():
            try:
                if not self._pipe.poll(0.005):
                    continue
                with self._changed:
                    self.grants.append(self._pipe.recv())
                    self._changed.notify_all()
                if not self.mute:
                    self._pipe.send((self.grant.at, self.held))
            except (EOFError, OSError):
                self.die(0)
        self._pipe.close()

    def die(self, exitcode: int) -> None:
        with self._changed:
            if self.exitcode is None:
                self.exitcode, self.died = exitcode, time.monotonic()  # type: ignore[assignment]
            self._dead.set()
            self._changed.notify_all()

    # ---- of a process

    def kill(self) -> None:
        self.die(-9)

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)


class Shared(Group):
    """A group of two threads: the keeper's and the test's."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self._lock = threading.RLock()

    def join(self, member: str) -> None:
        with self._lock:
            super().join(member)

    def leave(self, member: str) -> None:
        with self._lock:
            super().leave(member)

    def release(self, partitions: frozenset[int]) -> None:
        with self._lock:
            super().release(partitions)

    def take(self, member: str) -> frozenset[int]:
        with self._lock:
            return super().take(member)


class Stage:
    """A keeper in a thread, the group, and every worker it ever had."""

    def __init__(self, partitions: int = 2) -> None:
        self.group = Shared(partitions)
        self.workers: list[Stub] = []
        self.seats: list[MemoryMembership] = []
        self.seated: list[float] = []  # when
        self.slow: frozenset[int] = frozenset()
        self.mute = False
        self.stillborn = 0  # so many of the next workers die at once
        self.changed = threading.Condition()
        self.ended: BaseException | None = None
        self.keep()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def keep(self, drain_seconds: float = PATIENCE) -> None:
        """With this keeper, from the start."""
        self.keeper = Keeper(self._seat, self._hire, drain_seconds, session_seconds=6.0)

    def _seat(self) -> MemoryMembership:
        self.seated.append(time.monotonic())
        self.seats.append(MemoryMembership(self.group))
        return self.seats[-1]

    def _hire(self) -> tuple[BaseProcess, Connection]:
        worker = Stub(self.changed, len(self.workers) + 1, self.slow, self.mute)
        with self.changed:
            self.workers.append(worker)
            self.changed.notify_all()
        if self.stillborn:
            self.stillborn -= 1
            worker.die(1)
        return cast(BaseProcess, worker), worker.ours

    def _run(self) -> None:
        try:
            self.keeper.run()
        except BaseException as error:
            self.ended = error
        with self.changed:
            self.changed.notify_all()

    def start(self) -> "Stage":
        self._thread.start()
        return self

    @property
    def worker(self) -> Stub:
        return self.workers[-1]

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def until(self, true: Callable[[], bool]) -> None:
        """Whatever happens is heard of by a worker, at the latest at the next repetition of its grant."""
        deadline = time.monotonic() + PATIENCE
        with self.changed:
            while not true():
                assert time.monotonic() < deadline, "it did not come"
                self.changed.wait(0.05)

    def owning(self, *partitions: int) -> Stub:
        self.until(lambda: bool(self.workers) and self.worker.grant.partitions == frozenset(partitions))
        return self.worker

    def start_beside(self, other: str) -> Stub:
        """Start with ``other`` in the group before it, which gives it one of two partitions."""
        self.group.join(other)
        both = self.group.take(other)
        self.start()
        self.until(lambda: self.group.target(other) != both)
        ours = both - self.group.target(other)
        self.group.release(ours)
        return self.owning(*ours)

    def stop(self) -> None:
        self.keeper.stop()
        self._thread.join(PATIENCE)
        assert not self.running


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name, seconds in {
        "POLL_SECONDS": 0.002,
        "REPEAT_SECONDS": 0.02,
        "FROZEN_SECONDS": 0.2,
        "SILENCE_SECONDS": PATIENCE,
        "START_SECONDS": PATIENCE,
        "GRACE_SECONDS": 0.3,
        "BACKOFF_SECONDS": (0.3, 1.0),
    }.items():
        monkeypatch.setattr(lease, name, seconds)
    stage = Stage()
    yield stage
    if stage.running:
        stage.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> Stage:
    """With a keeper that waits for nobody."""
    monkeypatch.setattr(lease, "SILENCE_SECONDS", SILENCE)
    stage.keep(drain_seconds=0.3)
    return stage


# ---- grants


def test_the_worker_hears_what_it_may_own_and_hears_it_again(stage: Stage) -> None:
    worker = stage.start().owning(0, 1)
    assert stage.group.knows(worker.grant.proof)
    count = len(worker.grants)
    stage.until(lambda: len(worker.grants) > count + 3)
    times = [grant.at for grant in worker.grants]
    assert times == sorted(times)
    assert times[-1] > times[0], "its age is what tells a worker that its keeper lives"


def test_what_the_group_gives_later_is_granted_later(stage: Stage) -> None:
    worker = stage.start_beside("other")
    assert len(worker.grant.partitions) == 1
    stage.group.leave("other")
    assert stage.owning(0, 1) is worker


# ---- replacement


def test_a_worker_that_died_is_replaced_and_the_group_does_not_notice(stage: Stage) -> None:
    first = stage.start().owning(0, 1)
    generation = stage.group.generation
    first.die(137)
    stage.until(lambda: len(stage.workers) == 2)
    second = stage.owning(0, 1)
    assert second is not first
    assert stage.group.generation == generation


def test_the_next_worker_learns_what_its_predecessor_left_and_when(stage: Stage) -> None:
    """Until it has it: a partition that it lets go of and gets again has no dead owner."""
    first = stage.start().owning(0, 1)
    assert not any(grant.orphaned for grant in first.grants)
    stage.until(lambda: stage.keeper._held == {0, 1})
    before = time.monotonic()
    first.die(137)
    stage.until(lambda: len(stage.workers) == 2)
    second = stage.owning(0, 1)
    heard = second.grants[0]
    assert heard.orphaned == {0, 1}
    assert before <= heard.died_at <= heard.at
    stage.until(lambda: not second.grant.orphaned)


def test_of_one_that_died_before_it_held_anything_the_first_death_counts(stage: Stage) -> None:
    first = stage.start().owning(0, 1)
    stage.until(lambda: stage.keeper._held == {0, 1})
    stage.stillborn = 1
    before = time.monotonic()
    first.die(137)
    stage.until(lambda: len(stage.workers) == 3)
    third = stage.owning(0, 1)
    assert third.grants[0].orphaned == {0, 1}
    assert before <= third.grants[0].died_at < third.grants[0].at
    assert stage.keeper._deaths[-1] > third.grants[0].died_at


def test_a_worker_that_fell_silent_is_killed_and_replaced(impatient: Stage) -> None:
    first = impatient.start().owning(0, 1)
    impatient.until(lambda: impatient.keeper._held == {0, 1})
    first.mute = True
    impatient.until(lambda: len(impatient.workers) == 2)
    assert first.exitcode == -9
    heard = impatient.owning(0, 1).grants[0]
    assert heard.at - heard.died_at >= SILENCE, "it was last heard before it fell silent"


def test_a_worker_that_takes_long_to_start_is_waited_for(impatient: Stage) -> None:
    """An app may import half the world before its worker can answer."""
    impatient.mute = True
    first = impatient.start().owning(0, 1)
    began = time.monotonic()
    impatient.until(lambda: time.monotonic() > began + 3 * SILENCE)
    assert impatient.workers == [first]
    first.mute = False
    impatient.until(lambda: time.monotonic() > began + 4 * SILENCE)
    assert impatient.workers == [first]


def test_a_worker_that_never_starts_is_replaced(impatient: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "START_SECONDS", 0.6)
    impatient.mute = True
    first = impatient.start().owning(0, 1)
    impatient.until(lambda: len(impatient.workers) == 2)
    assert first.exitcode == -9


def test_a_keeper_that_stood_still_does_not_blame_its_worker(impatient: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    first = impatient.start().owning(0, 1)
    poll, thawed = MemoryMembership.poll, threading.Event()

    def freeze(seat: MemoryMembership, timeout: float) -> None:
        if not thawed.is_set():
            threading.Event().wait(3 * SILENCE)
            thawed.set()
        poll(seat, timeout)

    monkeypatch.setattr(MemoryMembership, "poll", freeze)
    impatient.until(thawed.is_set)
    count = len(first.grants)
    impatient.until(lambda: len(first.grants) > count + 3)
    assert impatient.workers == [first]


# ---- giving partitions back


def test_a_partition_is_given_back_when_the_worker_has_let_it_go(stage: Stage) -> None:
    stage.slow = frozenset({0, 1})
    worker = stage.start().owning(0, 1)
    stage.group.join("other")
    stage.until(lambda: worker.grant.leaving != frozenset())
    (asked,) = worker.grant.leaving
    assert worker.grant.partitions == frozenset({0, 1}) - {asked}
    assert stage.group.take("other") == frozenset(), "not while the worker is at it"
    worker.slow = frozenset()
    stage.until(lambda: stage.group.take("other") == {asked})
    stage.until(lambda: worker.grant.leaving == frozenset())
    assert stage.workers == [worker]


def test_a_worker_that_does_not_let_go_in_time_is_killed(impatient: Stage) -> None:
    impatient.slow = frozenset({0, 1})
    first = impatient.start().owning(0, 1)
    impatient.slow = frozenset()
    impatient.group.join("other")
    impatient.until(lambda: len(impatient.group.take("other")) == 1)
    assert first.exitcode == -9
    impatient.until(lambda: len(impatient.workers) == 2 and len(impatient.worker.grant.partitions) == 1)


def test_a_worker_that_dies_while_it_lets_go_has_let_go(stage: Stage) -> None:
    stage.slow = frozenset({0, 1})
    first = stage.start().owning(0, 1)
    stage.slow = frozenset()
    stage.group.join("other")
    stage.until(lambda: first.grant.leaving != frozenset())
    first.die(137)
    stage.until(lambda: len(stage.group.take("other")) == 1)


def test_a_partition_that_was_granted_a_moment_ago_is_not_given_back_before_the_worker_spoke(stage: Stage) -> None:
    """The worker may be taking it over: its fence would strike the partition's next owner."""
    stage.slow = frozenset({0, 1})
    worker = stage.start_beside("other")
    worker.mute = True
    stage.group.leave("other")
    stage.owning(0, 1)
    stage.group.join("third")
    stage.until(lambda: worker.grant.leaving != frozenset())
    assert stage.group.take("third") == frozenset()
    worker.mute = False
    assert stage.group.take("third") == frozenset(), "it is at work on it"
    worker.slow = frozenset()
    stage.until(lambda: len(stage.group.take("third")) == 1)
    assert stage.workers == [worker]


# ---- crash loops


def test_three_deaths_in_a_row_and_the_keeper_leaves_the_group_for_a_while(stage: Stage) -> None:
    stage.stillborn = 3
    stage.start()
    stage.until(lambda: len(stage.workers) == 4)
    stage.until(lambda: not any(stage.group.has(seat._name) for seat in stage.seats))
    stage.until(lambda: len(stage.seats) == 2)
    assert stage.seated[1] - stage.workers[2].died >= lease.BACKOFF_SECONDS[0], "it backs off"
    survivor = stage.owning(0, 1)
    count = len(survivor.grants)
    stage.until(lambda: len(survivor.grants) > count + 3)
    assert stage.workers[-1] is stage.workers[3] is survivor, "and does not blame the next one for its own absence"


def test_a_keeper_can_be_stopped_while_it_backs_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BACKOFF_SECONDS", (600.0, 600.0))
    stage.keep()
    stage.stillborn = 3
    stage.start()
    stage.until(lambda: len(stage.workers) == 4)
    stage.until(lambda: not any(stage.group.has(seat._name) for seat in stage.seats))
    stage.stop()


def test_a_worker_that_its_settings_keep_from_starting_ends_the_keeper(stage: Stage) -> None:
    stage.start().owning(0, 1).die(CONFIG_EXIT)
    stage.until(lambda: not stage.running)
    assert isinstance(stage.ended, SystemExit)
    assert stage.ended.code == CONFIG_EXIT
    assert len(stage.workers) == 1, "the next one would fare no better"


# ---- the end


def test_a_keeper_that_is_stopped_lets_its_worker_finish_and_leaves(stage: Stage) -> None:
    stage.slow = frozenset({0})
    worker = stage.start().owning(0, 1)
    stage.keeper.stop()
    stage.until(lambda: worker.grant.leaving == {0, 1})
    assert stage.running
    worker.slow = frozenset()
    stage.until(lambda: not stage.running)
    assert stage.ended is None
    assert not stage.group.has(stage.seats[0]._name)
    assert worker.exitcode == 0, "the closed pipe told it to end"


def test_a_keeper_that_has_lost_its_seat_for_good_ends_its_worker_and_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker heeds no signal: as long as it lived, the keeper's process could not end."""
    lost = threading.Event()

    def poll(seat: MemoryMembership, timeout: float) -> None:
        if lost.is_set():
            raise LogError("the seat is lost for good")
        return polled(seat, timeout)

    polled = MemoryMembership.poll
    monkeypatch.setattr(MemoryMembership, "poll", poll)
    worker = stage.start().owning(0, 1)
    lost.set()
    stage.until(lambda: not stage.running)
    assert isinstance(stage.ended, LogError)
    assert worker.exitcode == 0, "the closed pipe told it to end"


# ---- the worker's end of the pipe


class FollowedWorker:
    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self.grants: list[Grant] = []

    def granted(self, grant: Grant) -> None:
        self.grants.append(grant)
        self.held = grant.partitions


async def test_the_worker_answers_each_grant_with_what_it_holds_and_ends_with_its_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exited(Exception):
        pass

    def exit_(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr("os._exit", exit_)
    keepers, workers = Pipe()
    worker = FollowedWorker()
    following = asyncio.create_task(attend(workers, cast(Worker, worker)))
    for at, partitions in ((1.0, {0, 1}), (2.0, {1})):
        keepers.send(Grant(frozenset(partitions), at=at))
        answer: Any = await asyncio.to_thread(keepers.recv)
        assert answer == (at, partitions)
    keepers.close()
    with pytest.raises(Exited):
        await asyncio.wait_for(following, PATIENCE)
    assert len(worker.grants) == 2
    asyncio.get_running_loop().remove_reader(workers.fileno())
