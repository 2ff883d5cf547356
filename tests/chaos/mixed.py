"""One fault of each kind after the other on the same ground, in any order, while orders are given: they may not add up."""

from collections import defaultdict
from itertools import count
from pathlib import Path

from tests.chaos.figures import Report, largest
from tests.chaos.ground import Ground, ground
from tests.chaos.kills import kill, made_good
from tests.chaos.load import Plan
from tests.chaos.machines import lose
from tests.chaos.orders import Orders
from tests.chaos.restarts import stop
from tests.chaos.zombies import WHO, freeze_and_wake

KILL, LOSS, STOP = "kill -9 to next step max", "loss of a machine to next step max", "last word before a stop to next step max"
WAKING = "frozen and woken to back or gone max"
FAULTS = (KILL, STOP, LOSS, *WHO)


async def mix(bootstrap: str, root: Path, seed: int, *, rounds: int, session_ms: int) -> Report:
    """Each round makes each fault once. A worker that is gone is followed by a fresh one."""
    report = Report(f"faults of each kind in turn, cancels and resumes meanwhile, {rounds} rounds, seed {seed}")
    plan = Plan(48, turns=6, fastest=0.2, slowest=1.0)
    targets = {KILL: 1.2, LOSS: session_ms / 1000 + 2, STOP: 2.0, WAKING: 5.0}  # seconds
    async with ground(bootstrap, root, seed=seed, plan=plan, partitions=6, session_ms=session_ms, heartbeat_ms=200) as field:
        turn = Turn(field, report)
        await field.start(*(turn.fresh() for _ in range(3)))
        await field.busy()
        async with Orders(field) as orders:
            for _ in range(rounds):
                for fault in field.draw.sample(FAULTS, len(FAULTS)):
                    await turn.make(fault)
        await orders.judge(report, session_ms / 1000 + 3)
        for what, target in targets.items():
            report.at_most(what, largest(turn.figures[what]), target, " s")
        report.none("new side effects after takeover", turn.acts)
        await field.judge(report, killed=turn.killed, cancelled=orders.cancelled)
        report.none("accidents", field.processes.accidents())
    return report


class Turn:
    """Makes one fault at a time and notes its figures."""

    def __init__(self, field: Ground, report: Report) -> None:
        self._field, self._report, self._names = field, report, count(1)
        self.figures: dict[str, list[float]] = defaultdict(list)  # seconds
        self.killed: list[int] = []
        self.acts: list[str] = []

    def fresh(self) -> str:
        return f"worker-{next(self._names)}"

    async def make(self, fault: str) -> None:
        field, present = self._field, sorted(self._field.processes.names)
        await field.balanced()
        await made_good(field, self._report, *present)
        name = field.draw.choice(present)
        if fault == STOP:
            await field.start(self.fresh())
            self.figures[STOP] += await stop(field, name)
        elif fault in WHO:
            zombie = await freeze_and_wake(field, name, fault, self._report)
            self._note(WAKING, [zombie.back_after], zombie.pid)
            self.acts += zombie.acts
        else:
            self._note(fault, *await (kill if fault == KILL else lose)(field, name))
        if name not in field.processes.names and fault != STOP:
            await field.start(self.fresh())

    def _note(self, what: str, seconds: list[float], pid: int) -> None:
        self.figures[what] += seconds
        self.killed.append(pid)
