"""The lag is the age of what the tables show, whether the log is still, busy, or not to be written."""

import pytest

from runfold_projector import lag
from runfold_projector.stable import StableOffsets


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lag, "time", made)
    return made


def test_a_still_log_that_is_read_to_its_end_has_no_lag(clock: Clock) -> None:
    measured = lag.Lag()
    for _ in range(3):
        clock.now += 60
        measured.look({0: 5, 1: 0}, {0: 5, 1: 0}, clock.now)
        assert (measured.seconds, measured.records) == (0, 0)


def test_records_that_are_not_in_the_tables_age(clock: Clock) -> None:
    measured = lag.Lag()
    measured.look({0: 5}, {0: 5}, clock.now)
    for waited in (10, 20):
        clock.now += 10
        measured.look({0: 9}, {0: 5}, clock.now)
        assert (measured.seconds, measured.records) == (waited, 4)
    measured.look({0: 9}, {0: 9}, clock.now)
    assert (measured.seconds, measured.records) == (0, 0)


def test_a_busy_log_whose_end_is_never_reached_is_no_lag(clock: Clock) -> None:
    measured = lag.Lag()
    for end in range(100, 200):
        clock.now += 1
        measured.look({0: end, 1: end}, {0: end - 1, 1: end - 1}, clock.now)
        assert measured.seconds <= 1


def test_one_partition_that_stands_still_is_a_lag(clock: Clock) -> None:
    measured = lag.Lag()
    for end in range(10):
        clock.now += 1
        measured.look({0: end, 1: 1}, {0: end, 1: 0}, clock.now)
    assert measured.seconds == 10


def test_a_log_that_has_fallen_silent_is_no_still_one(clock: Clock) -> None:
    """Where it ended when it last spoke says nothing of now."""
    measured = lag.Lag()
    heard_at = clock.now
    for waited in (10, 20, 30):
        clock.now += 10
        measured.look({0: 5}, {0: 5}, heard_at)
        assert (measured.seconds, measured.records) == (waited, 0)
    measured.look({0: 9}, {0: 5}, clock.now)
    assert measured.seconds == 30, "it speaks again, of more"
    measured.look({0: 9}, {0: 9}, clock.now)
    assert measured.seconds == 0


def test_who_stands_by_has_no_lag(clock: Clock) -> None:
    measured = lag.Lag()
    measured.look({0: 9}, {0: 5}, clock.now)
    clock.now += 10
    measured.none()
    assert (measured.seconds, measured.records) == (0, 0)


# ---- the last stable offset


def test_an_offset_that_stands_still_before_the_end_ages_until_it_moves() -> None:
    stable = StableOffsets()
    looks = [
        (0.0, {0: 5, 1: 7}, {0: 5, 1: 7}, 0.0),
        (10.0, {0: 6, 1: 7}, {0: 5, 1: 7}, 0.0),  # from now on
        (14.0, {0: 9, 1: 8}, {0: 5, 1: 7}, 4.0),
        (16.0, {0: 9, 1: 9}, {0: 5, 1: 8}, 6.0),  # the other moves on, as on any busy partition
        (17.0, {0: 9, 1: 9}, {0: 9, 1: 8}, 1.0),
        (18.0, {0: 9, 1: 9}, {0: 9, 1: 9}, 0.0),
    ]
    for now, ends, at, age in looks:
        stable.look(ends, at, now)
        assert stable.age == age, now


def test_who_stands_by_has_nothing_to_say_of_it() -> None:
    stable = StableOffsets()
    for now in (0.0, 9.0):
        stable.look({0: 6}, {0: 5}, now)
    stable.none()
    assert stable.age == 0
