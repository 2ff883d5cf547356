"""When to try again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.core.errors import ModelFailure
from runfold.core.events import Reason
from runfold.model import Retrying, RetryPolicy, ScriptedModel
from runfold.model.failures import failure
from runfold.ports import ModelAnswer, ModelRequest
from runfold.testing import RecordingSleeper, model_request

POLICY = RetryPolicy(attempts=5, base=1, cap=10, retry_after_cap=600)


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_full_jitter_grows_to_its_ceiling(failures: int, ceiling: float) -> None:
    assert POLICY.delay(failures, None, 0.0) == 0
    assert POLICY.delay(failures, None, 0.5) == ceiling / 2


def test_the_cap_bounds_our_own_back_off_whatever_the_count() -> None:
    patient = RetryPolicy(attempts=10**6, base=1, cap=10)
    assert patient.delay(5, None, 0.5) == 5
    assert patient.delay(10**5, None, 0.5) == 5


def test_the_longer_of_jitter_and_retry_after_counts() -> None:
    assert POLICY.delay(4, 3.0, 0.9) == pytest.approx(7.2)
    assert POLICY.delay(1, 7.0, 0.9) == 7


def test_what_a_server_asks_for_is_bounded() -> None:
    assert POLICY.delay(1, 90_000, 0.5) == 600


def test_the_last_attempt_has_no_next() -> None:
    assert POLICY.delay(5, 7.0, 0.5) is None
    assert RetryPolicy(attempts=1).delay(1, None, 0.5) is None


@given(
    st.integers(1, 4),
    st.none() | st.floats(0.001, 1e9),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_never_shorter_than_asked_nor_longer_than_allowed(failures: int, asked: float | None, draw: float) -> None:
    delay = POLICY.delay(failures, asked, draw)
    assert delay is not None
    assert min(asked or 0, 600) <= delay <= 600


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
