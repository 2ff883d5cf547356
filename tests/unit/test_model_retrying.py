"""When to try again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.config import Settings
from runfold.core.errors import ModelFailure
from runfold.core.events import Reason
from runfold.model import Backoff, Retrying, RetryPolicy, ScriptedModel
from runfold.model.failures import failure
from runfold.ports import ModelAnswer, ModelRequest
from runfold.testing import RecordingSleeper, model_request

BACKOFF = Backoff(attempts=5, base=1, cap=10)
POLICY = RetryPolicy(overloads=BACKOFF, mishaps=BACKOFF, retry_after_cap=600)


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_full_jitter_grows_to_its_ceiling(failures: int, ceiling: float) -> None:
    assert POLICY.delay(failures, None, 0.0) == 0
    assert POLICY.delay(failures, None, 0.5) == ceiling / 2


def test_the_cap_bounds_our_own_back_off_whatever_the_count() -> None:
    patient = Backoff(attempts=10**6, base=1, cap=10)
    assert patient.ceiling(5) == 10
    assert patient.ceiling(10**5) == 10


def test_the_longer_of_jitter_and_retry_after_counts() -> None:
    assert POLICY.delay(4, 3.0, 0.9) == pytest.approx(7.2)
    assert POLICY.delay(1, 7.0, 0.9) == 7


def test_what_a_server_asks_for_is_bounded() -> None:
    assert POLICY.delay(1, 90_000, 0.5) == 600


def test_the_last_attempt_has_no_next() -> None:
    assert POLICY.delay(5, 7.0, 0.5) is None
    assert Backoff(attempts=1, base=1, cap=60).ceiling(1) is None


@given(
    st.integers(1, 4),
    st.none() | st.floats(0.001, 1e9),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_never_shorter_than_asked_nor_longer_than_allowed(failures: int, asked: float | None, draw: float) -> None:
    delay = POLICY.delay(failures, asked, draw)
    assert delay is not None
    assert min(asked or 0, 600) <= delay <= 600


PATIENT = RetryPolicy(overloads=Backoff(attempts=4, base=5, cap=15), mishaps=Backoff(attempts=2, base=1, cap=10))


def test_an_overload_is_waited_for_longer_and_more_often() -> None:
    assert [PATIENT.delay(n, None, 0.8, overloaded=True) for n in (1, 2, 3, 4)] == [4, 8, 12, None]
    assert [PATIENT.delay(n, None, 0.8) for n in (1, 2)] == [0.8, None]
    assert PATIENT.delay(1, 90_000, 0.8, overloaded=True) == 600


def test_by_default_an_overload_is_waited_for_for_minutes() -> None:
    """As the worker has it: in the mean a quarter of an hour, before a run is given up."""
    settings = Settings()
    policy = Backoff(attempts=settings.overload_attempts, base=settings.overload_base_seconds, cap=settings.overload_cap_seconds)
    ceilings = [policy.ceiling(n) or 0.0 for n in range(1, policy.attempts)]
    assert 10 * 60 < sum(ceilings) / 2 < 20 * 60


async def test_overloads_and_other_failures_are_counted_apart() -> None:
    failures = iter([Reason.OVERLOADED, Reason.API_ERROR, Reason.OVERLOADED, Reason.OVERLOADED, Reason.CONNECTION])

    def fail(request: ModelRequest) -> ModelAnswer:
        raise failure(next(failures), "no")

    sleeper = RecordingSleeper()
    with pytest.raises(ModelFailure, match="CONNECTION"):
        await Retrying(ScriptedModel(fail), PATIENT, sleep=sleeper, draw=lambda: 0.8).complete(model_request())
    assert sleeper.slept == [4, 0.8, 8, 12]


async def test_each_attempt_is_numbered_and_the_last_failure_is_raised() -> None:
    attempts: list[int] = []

    def fail(request: ModelRequest) -> ModelAnswer:
        attempts.append(request.attempt)
        raise failure(Reason.OVERLOADED, f"attempt {request.attempt}")

    sleeper = RecordingSleeper()
    with pytest.raises(ModelFailure, match="attempt 6"):
        await Retrying(ScriptedModel(fail), POLICY, sleep=sleeper, draw=lambda: 0.5).complete(model_request(attempt=2))
    assert attempts == [2, 3, 4, 5, 6]
    assert sleeper.slept == [0.5, 1, 2, 4]
