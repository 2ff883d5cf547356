"""The broker's clock, as far as its records tell it: the only clock that deadlines trust."""

from collections.abc import Callable

SLOW = 0.01  # how much of a step backwards one record is worth


class BrokerClock:
    """Broker milliseconds, from the timestamps of records this worker has just written.

    A record is read a little after it was stamped, so the largest difference seen is the closest. Smaller ones pull slowly: a
    broker whose clock was set back is followed without a jump.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic  # seconds
        self._ahead: float | None = None  # broker ms less our own

    def saw(self, timestamp: int) -> None:
        """A record of our own came back, stamped ``timestamp`` (ms)."""
        ahead = timestamp - self._monotonic() * 1000
        if self._ahead is None or ahead >= self._ahead:
            self._ahead = ahead
        else:
            self._ahead += (ahead - self._ahead) * SLOW

    def now(self) -> int:
        """Broker ms. Only after the first `saw`: no owner acts before its marker came back."""
        assert self._ahead is not None, "the clock is asked before any record of this worker was read back"
        return int(self._monotonic() * 1000 + self._ahead)

    def local(self, at: int) -> float:
        """The monotonic second at which the broker's clock will show ``at``."""
        assert self._ahead is not None
        return (at - self._ahead) / 1000
