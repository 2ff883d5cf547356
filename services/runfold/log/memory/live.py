"""The side topic of a memory broker."""

from runfold.log import live
from runfold.log.memory.broker import MemoryBroker
from runfold.ports import LiveText

MOST_PIECES = 10_000  # that the broker keeps


class MemoryLive:
    """A `runfold.ports.Live`. What is shown while the broker is stopped is dropped; ``dropped`` counts."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.dropped = 0

    def show(self, piece: LiveText) -> None:
        if self._broker.up and len(self._broker.live) < MOST_PIECES:
            self._broker.live.append((piece.run_id, live.encode(piece)))
        else:
            self.dropped += 1


class MemoryLiveReader:
    """A `runfold.ports.LiveReader`. It waits for nothing: nobody else could show anything meanwhile."""

    def __init__(self, broker: MemoryBroker, run_id: str) -> None:
        self._broker, self._run_id, self._next = broker, run_id, 0

    def read(self, seconds: float) -> list[LiveText]:
        if not self._broker.up:
            return []
        found = self._broker.live[self._next :]
        self._next += len(found)
        pieces = [live.decode(value) for run_id, value in found if run_id == self._run_id]
        return [piece for piece in pieces if piece is not None]

    def close(self) -> None:
        pass
