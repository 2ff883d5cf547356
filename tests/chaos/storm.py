"""Workers that come and go all the time while people cancel runs: every command is obeyed or refused, and soon."""

import asyncio
import time
from itertools import count
from pathlib import Path
from uuid import uuid4

from runfold.core.events import RunCancelRequested
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaCommands
from tests.chaos.figures import Report, percentile
from tests.chaos.ground import Ground, ground
from tests.chaos.load import Plan
from tests.chaos.machines import strike

CANCEL_SECONDS = 5.0  # p99 of a cancel: a lost machine's session is 2 s
EVERY_SECONDS = 0.25
ANSWER_SECONDS = 15.0  # for the last ones


async def storm(bootstrap: str, root: Path, seed: int, comings: int) -> Report:
    """Each time a fresh worker joins and another one leaves: stopped, or lost with its machine."""
    report = Report(f"cancels in a storm of rebalances, {comings} workers come and go, seed {seed}")
    plan, names, killed = Plan(60, 8, 0.3, 2.0), count(1), list[int]()
    async with ground(bootstrap, root, seed=seed, plan=plan, session_ms=2000, heartbeat_ms=200) as field:
        present = [f"worker-{next(names)}" for _ in range(3)]
        await field.start(*present)
        await field.busy()
        async with Cancels(field) as cancels:
            for number in range(comings):
                name = present.pop(field.draw.randrange(len(present)))
                present.append(fresh := f"worker-{next(names)}")
                if number % 2:
                    killed.append(strike(field, name))
                else:
                    await field.processes.stop(name)
                await field.start(fresh)
        await cancels.judge(report)
        await field.judge(report, killed=killed, cancelled=cancels.sent)
    return report


class Cancels:
    """Inside the block one open run after the other is cancelled."""

    def __init__(self, field: Ground) -> None:
        self._field = field
        self.sent: dict[str, float] = {}  # by run

    async def __aenter__(self) -> "Cancels":
        self._commands = KafkaCommands(self._field.settings, Codec())
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._commands.close()

    async def _send(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if choice := sorted(self._field.watcher.open.keys() - self.sent.keys()):
                run_id = self._field.draw.choice(choice)
                self.sent[run_id] = time.monotonic()
                await self._commands.send(RunCancelRequested(run_id=run_id, command_id=str(uuid4()), requested_by="chaos"))

    async def judge(self, report: Report) -> None:
        await self._field.until("answers to all cancels", lambda: not self.unanswered(), ANSWER_SECONDS)
        took = self.took()
        report.at_most("cancel to answer p99", percentile(took, 99), CANCEL_SECONDS, " s")
        report.say(f"p50 {percentile(took, 50):.2f} s, max {max(took, default=float('nan')):.2f} s of {len(took)} cancels")
        report.none("cancels without an answer", self.unanswered())

    def unanswered(self) -> list[str]:
        return sorted(self.sent.keys() - self._field.watcher.finished_at.keys())

    def took(self) -> list[float]:
        """Seconds until the run had ended, by the command or by itself."""
        ended = self._field.watcher.finished_at
        return [ended[run_id] - at for run_id, at in self.sent.items() if run_id in ended]
