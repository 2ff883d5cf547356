"""The checks by name, and how much of each is in the short and in the long form."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos.brokers import kill_nodes, kill_the_only_broker
from tests.chaos.cuts import cut_off
from tests.chaos.figures import Report
from tests.chaos.kills import kill_workers
from tests.chaos.load import Plan
from tests.chaos.machines import lose_machines
from tests.chaos.mixed import mix
from tests.chaos.restarts import restart_workers
from tests.chaos.storm import storm
from tests.chaos.tables import lose_postgres
from tests.chaos.takeovers import take_over
from tests.chaos.zombies import freeze

T = TypeVar("T")

BRIEF = Plan(300, turns=12, fastest=2, slowest=6)
FULL = Plan(1000, turns=12, fastest=5, slowest=10)


@dataclass(frozen=True, slots=True)
class Setting:
    bootstrap: str
    root: Path
    seed: int
    long: bool

    def __call__(self, short: T, long: T) -> T:
        return long if self.long else short


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Setting], Coroutine[Any, Any, Report]]


# A worker that its keeper forks anew is of the real size wherever that is measured, and `lean` where it is not.
CHECKS = (
    Check("kill", lambda s: kill_workers(s.bootstrap, s.root, s.seed, kills=s(8, 50), plan=s(BRIEF, FULL), lean=False)),
    Check("machine", lambda s: lose_machines(s.bootstrap, s.root, s.seed, losses=s(2, 20), session_ms=6000)),
    Check("machine-quick", lambda s: lose_machines(s.bootstrap, s.root, s.seed, losses=s(2, 20), session_ms=1500)),
    Check("sigterm", lambda s: restart_workers(s.bootstrap, s.root, s.seed, restarts=s(5, 50))),
    Check("zombie", lambda s: freeze(s.bootstrap, s.root, s.seed, rounds=s(1, 5), session_ms=s(2000, 6000), lean=not s.long)),
    Check("cut", lambda s: cut_off(s.root, s.seed, cuts=s(1, 5), session_ms=s(2000, 6000))),
    Check(
        "takeover",
        lambda s: take_over(
            s.bootstrap, s.root, s.seed, events=s(100_000, 1_000_000), runs=s(100, 1000), kills=s(3, 10), lean=not s.long
        ),
    ),
    Check("broker", lambda s: kill_the_only_broker(s.root, s.seed, kills=s(2, 10))),
    Check("cluster", lambda s: kill_nodes(s.root, s.seed, kills=s(2, 10))),
    Check("postgres", lambda s: lose_postgres(s.bootstrap, s.root, s.seed, away=s(5, 10))),
    Check("mixed", lambda s: mix(s.bootstrap, s.root, s.seed, rounds=s(1, 5), session_ms=s(2000, 6000))),
    Check("storm", lambda s: storm(s.bootstrap, s.root, s.seed, comings=s(4, 20))),
)
