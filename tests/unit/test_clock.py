"""The broker's clock as a worker knows it (`runfold.worker.clock`)."""

import random
from itertools import pairwise

import pytest

from runfold.worker.clock import BrokerClock

NOON = 1_800_000_000_000  # broker ms


class Ours:
    """A monotonic clock in seconds that moves when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def ours() -> Ours:
    return Ours()


@pytest.fixture
def clock(ours: Ours) -> BrokerClock:
    return BrokerClock(ours)


def test_it_goes_on_between_records(ours: Ours, clock: BrokerClock) -> None:
    clock.saw(NOON)
    assert clock.now() == NOON
    ours.pass_time(1.5)
    assert clock.now() == NOON + 1500


def test_it_cannot_be_asked_before_the_first_record(clock: BrokerClock) -> None:
    with pytest.raises(AssertionError, match="before any record"):
        clock.now()


def test_a_record_that_came_late_does_not_set_it_back(ours: Ours, clock: BrokerClock) -> None:
    clock.saw(NOON)
    ours.pass_time(10)
    clock.saw(NOON + 8_000)  # stamped two seconds ago
    assert NOON + 9_900 <= clock.now() <= NOON + 10_000


def test_the_quickest_record_is_believed_at_once(ours: Ours, clock: BrokerClock) -> None:
    clock.saw(NOON)
    ours.pass_time(1)
    clock.saw(NOON + 1_500)  # the first one had been half a second on its way
    assert clock.now() == NOON + 1_500


def test_a_broker_whose_clock_was_set_back_is_followed_in_small_steps(ours: Ours, clock: BrokerClock) -> None:
    clock.saw(NOON)
    seen = [clock.now()]
    for _ in range(1000):
        ours.pass_time(0.1)
        clock.saw(NOON - 60_000 + round((ours.seconds - 100) * 1000))
        seen.append(clock.now())
    true = NOON - 60_000 + 100_000
    assert abs(seen[-1] - true) < 100
    assert max(before - after for before, after in pairwise(seen)) < 1_000, "no jump, and hardly backwards"


@pytest.mark.parametrize("seed", range(5))
def test_a_timer_set_by_it_goes_off_when_it_shows_that_time(seed: int, ours: Ours, clock: BrokerClock) -> None:
    chance = random.Random(seed)
    clock.saw(NOON + chance.randrange(10_000))
    at = clock.now() + chance.randrange(1, 10**9)
    ours.seconds = clock.local(at) + 0.001
    assert at <= clock.now() <= at + 2, f"seed {seed}"
