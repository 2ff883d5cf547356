"""What people ask of runs while harm is done: that one ends, that another goes on. Each is obeyed or refused, and soon."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Self
from uuid import UUID

from runfold.core.events import RunCancelRequested, RunResumeRequested
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands
from tests.chaos.figures import Report, largest, percentile
from tests.chaos.ground import Ground

EVERY_SECONDS = 0.2
ANSWER_SECONDS = 15.0  # for the last ones


@dataclass(frozen=True, slots=True)
class Order:
    run_id: str
    at: float


class Orders:
    """Inside the block open runs are given orders, by turns a cancel and a resume, which a run that is not suspended refuses."""

    def __init__(self, field: Ground) -> None:
        self._field = field
        self.sent: dict[str, Order] = {}  # by command
        self.cancelled: set[str] = set()  # runs

    async def __aenter__(self) -> Self:
        self._commands = KafkaCommands(self._field.settings, Codec())
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._sending
        finally:
            await self._commands.close()

    async def _send(self) -> None:
        draw = self._field.draw
        for number in count():
            await asyncio.sleep(EVERY_SECONDS)
            if not (choice := sorted(self._field.watcher.open.keys() - self.cancelled)):
                continue
            run_id, command_id = draw.choice(choice), str(UUID(int=draw.getrandbits(128), version=4))
            self.sent[command_id] = Order(run_id, time.monotonic())
            if number % 2:
                await self._commands.send(RunResumeRequested(run_id=run_id, command_id=command_id, requested_by="chaos"))
            else:
                self.cancelled.add(run_id)
                await self._commands.send(RunCancelRequested(run_id=run_id, command_id=command_id, requested_by="chaos"))

    async def judge(self, report: Report, seconds: float) -> None:
        """``seconds``: p99 of an answer; whoever owned the run may be gone, and has its session."""
        await self._field.until("answers to all orders", lambda: not self.unanswered(), ANSWER_SECONDS)
        took = self._took()
        report.at_most("cancel or resume to answer p99", percentile(took, 99), seconds, " s")
        report.say(f"p50 {percentile(took, 50):.2f} s, max {largest(took):.2f} s of {len(took)}")
        report.none("orders without an answer", self.unanswered())

    def _answered(self, command_id: str) -> float | None:
        """When it was refused, or when its run had ended: by it, or by itself."""
        watcher = self._field.watcher
        return watcher.rejected.get(command_id) or watcher.finished_at.get(self.sent[command_id].run_id)

    def unanswered(self) -> list[str]:
        return [f"{id_} to {order.run_id}" for id_, order in self.sent.items() if self._answered(id_) is None]

    def _took(self) -> list[float]:
        """Seconds."""
        return [at - order.at for id_, order in self.sent.items() if (at := self._answered(id_)) is not None]
