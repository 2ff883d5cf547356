"""What a seed decides: how large a world is, which faults it has and how often.

Each seed switches every kind of fault on or off by itself: faults that come together hide what one of them alone would show.
"""

from dataclasses import dataclass, fields, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Rates:
    """How often each fault happens: a probability where it can happen, or, of those ``per minute``, a number. 0: never."""

    # to a request of any client
    lost_request: float = 0.02
    hanging_request: float = 0.01
    # to a fence, an append
    unheard_fence: float = 0.03  # it took effect, and its caller is not told
    refused_append: float = 0.03  # raised, and nothing was committed
    hanging_append: float = 0.02
    unheard_commit: float = 0.03  # raised, and it was committed
    hanging_commit: float = 0.02  # committed, and no answer ever comes
    lost_commit: float = 0.03  # acknowledged, and not committed
    late_marker: float = 0.10
    # to a reader
    late_delivery: float = 0.10
    # to the process that does something
    crash_in_append: float = 0.02
    freeze_in_append: float = 0.02  # when the group has agreed, and the commit is not sent
    crash_in_fence: float = 0.03
    crash_in_model_call: float = 0.02
    crash_in_tool: float = 0.03
    # to anybody, per minute
    kill_worker: float = 6
    kill_machine: float = 3
    freeze_worker: float = 5
    freeze_keeper: float = 3
    freeze_machine: float = 4
    cut_worker: float = 3  # from the broker
    cut_keeper: float = 3
    restart: float = 5  # planned: the machine leaves and comes back
    stop_broker: float = 2
    jump_clock: float = 2  # of the broker

    @property
    def kills_nobody(self) -> bool:
        """Whether only planned restarts happen, if anything does."""
        return replace(self, restart=0) == CALM


PER_MINUTE = (
    "kill_worker",
    "kill_machine",
    "freeze_worker",
    "freeze_keeper",
    "freeze_machine",
    "cut_worker",
    "cut_keeper",
    "restart",
    "stop_broker",
    "jump_clock",
)
LONG_DRAIN = 60.0  # longer than anything takes
CALM = Rates(**{field.name: 0 for field in fields(Rates)})


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a world. ``seconds``: how long faults go on; ``small``: whether limits are scaled down, see `scale`."""

    machines: int
    partitions: int
    runs: int
    seconds: float
    drain: float  # seconds that a worker gets to finish what runs before it lets go
    small: bool
    rates: Rates
    overlap: bool  # whether what is harmless begins before its start is in the log

    @property
    def patient(self) -> bool:
        """Whether planned restarts have time: then they may abort nothing."""
        return self.drain == LONG_DRAIN


class Chance(Random):
    """One stream of chance. Each part of a world has its own, so that more of one does not change another."""

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.random() < probability

    def seconds(self, mean: float, most: float) -> float:
        """A duration: short ones are many."""
        return min(self.expovariate(1 / mean), most)


def freeze_seconds(chance: Chance) -> float:
    """Shorter and longer than the keeper's patience, and than a session."""
    return chance.choice((0.5, 3, 8, 15))


def stream(seed: int, name: str) -> Chance:
    return Chance(f"{seed}/{name}")


def plan_of(seed: int) -> Plan:
    """What the seed decides before anything happens."""
    chance = stream(seed, "plan")
    return Plan(
        machines=chance.randint(2, 4),
        partitions=chance.randint(1, 4),
        runs=chance.randint(2, 8),
        seconds=chance.uniform(5, 40),
        drain=chance.choice((5, LONG_DRAIN)),
        small=chance.happens(0.5),
        rates=_rates(chance),
        overlap=bool(seed % 2),
    )


def _rates(chance: Chance) -> Rates:
    if chance.happens(0.1):
        return replace(CALM, restart=chance.choice((0, 10, 20)))
    share = chance.choice((0.2, 0.4, 0.7))  # of the kinds of fault
    return replace(CALM, **{field.name: getattr(Rates(), field.name) for field in fields(Rates) if chance.happens(share)})
