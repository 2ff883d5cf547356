"""The breaker of a model, by a clock of the test's own: what it lets through, and when."""

from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest

from runfold.core.errors import LogUnavailable, ModelFailure
from runfold.core.events import Limits, ModelStepStarted, OwnerEvent, Reason, RunRequested, Status
from runfold.log.memory import MemoryBroker, MemoryCommands, MemoryLog
from runfold.model import BreakerPolicy, Breakers
from runfold.model.failures import failure
from runfold.model.scripted import ScriptedModel
from runfold.ports import ModelAnswer, ModelRequest
from tests.engine import Engine, Ledger, NoRetry, text

OVERLOAD = failure(Reason.OVERLOADED, "come back later")
POLICY = BreakerPolicy(failures=3, pause=5.0, cap=20.0)


class Clock:
    """An event loop's timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        self._timers.append((when, callback))

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_at(self.now, callback)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer[0] <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for _, callback in due:
            callback()


class World:
    """Runs that want to call models; ``calls`` are those that are made."""

    def __init__(self) -> None:
        self.clock, self.told = Clock(), list[tuple[str, bool]]()
        self.breakers = Breakers(POLICY, lambda model, held: self.told.append((model, held)), self.clock)
        self.calls: list[str] = []

    def want(self, run: str, model: str = "m") -> None:
        if self.breakers.admits(model, run, lambda: self.want(run, model)):
            self.breakers.started(model)
            self.calls.append(run)

    def hear(self, *failures: ModelFailure | None, model: str = "m") -> None:
        for each in failures:
            self.breakers.heard(model, each)

    def made(self) -> list[str]:
        """The calls since it was last asked."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def opened(world: World) -> World:
    world.hear(*[OVERLOAD] * 3)
    for run in ("a", "b", "c"):
        world.want(run)
    assert world.made() == []
    return world


def test_failures_in_a_row_open_it_whoever_they_are_of(world: World) -> None:
    world.hear(OVERLOAD, failure(Reason.CONNECTION, "reset"))
    world.want("a")
    assert world.made() == ["a"]
    world.hear(OVERLOAD)
    world.want("b")
    assert world.made() == []
    assert world.told == [("m", True)]


@pytest.mark.parametrize("sign_of_life", [None, failure(Reason.MODEL_REQUEST, "400")], ids=["an answer", "a refusal"])
def test_a_sign_of_life_begins_the_count_anew(world: World, sign_of_life: ModelFailure | None) -> None:
    world.hear(OVERLOAD, OVERLOAD, sign_of_life, OVERLOAD, OVERLOAD)
    world.want("a")
    assert world.made() == ["a"]


def test_other_models_go_on(opened: World) -> None:
    opened.want("z", "another")
    assert opened.made() == ["z"]


def test_when_the_pause_is_over_one_may_try(opened: World) -> None:
    opened.clock.pass_(4.9)
    assert opened.made() == []
    opened.clock.pass_(0.1)
    assert opened.made() == ["a"]
    opened.want("d")
    opened.clock.pass_(60)
    assert opened.made() == [], "and no other while nothing is heard of it"


def test_an_answer_lets_all_go_on(opened: World) -> None:
    opened.clock.pass_(5)
    opened.hear(None)
    opened.clock.pass_(0)
    assert opened.made() == ["a", "b", "c"]
    assert opened.told == [("m", True), ("m", False)]


def test_each_trial_that_fails_doubles_the_pause_up_to_the_cap(opened: World) -> None:
    opened.clock.pass_(5)
    assert opened.made() == ["a"]
    for pause in (10, 20, 20, 20):
        opened.hear(OVERLOAD)
        opened.want("a")
        opened.clock.pass_(pause - 0.1)
        assert opened.made() == []
        opened.clock.pass_(0.1)
        assert len(opened.made()) == 1


def test_calls_that_were_under_way_when_it_opened_change_no_pause(opened: World) -> None:
    opened.hear(OVERLOAD, OVERLOAD)
    opened.clock.pass_(5)
    assert opened.made() == ["a"]


def test_the_next_one_tries_when_the_trial_is_cancelled_or_never_heard_of(opened: World) -> None:
    opened.clock.pass_(5)
    opened.breakers.given_up("m")
    opened.clock.pass_(0)
    assert opened.made() == ["a", "b"]
    opened.clock.pass_(120)
    assert opened.made() == ["c"]


def test_one_who_is_gone_does_not_keep_the_others_from_trying(opened: World) -> None:
    """A run that was cancelled meanwhile does nothing when it is poked."""
    opened.breakers.admits("m", "a", lambda: None)
    opened.clock.pass_(5)
    assert opened.made() == ["b"]


def test_after_it_closed_it_takes_as_many_failures_again(opened: World) -> None:
    opened.clock.pass_(5)
    opened.hear(None, OVERLOAD, OVERLOAD)
    opened.clock.pass_(0)
    opened.made()
    opened.want("d")
    assert opened.made() == ["d"]


async def test_a_trial_whose_start_is_lost_on_its_way_to_the_log_holds_nobody_up() -> None:
    """The call was never made, so nobody would say how it ended: the others waited for two minutes."""
    broker, ledger = MemoryBroker(1), Ledger()
    broker.group.join("group")
    breakers = Breakers(BreakerPolicy(failures=2, pause=0.1))
    lost = list[int]()

    async def lose_the_trial(partition: int, events: Sequence[OwnerEvent]) -> None:
        if len(ledger.model_calls) == 2 and not lost and any(isinstance(event, ModelStepStarted) for event in events):
            lost.append(partition)
            raise LogUnavailable("the test says so")

    def reply(request: ModelRequest) -> ModelAnswer:
        if not lost:
            raise failure(Reason.OVERLOADED, "come back later")
        return text("done")

    broker.before_commit = lose_the_trial
    retries = NoRetry([0.01] * 9)
    engine = Engine(MemoryLog(broker), ScriptedModel(reply), ledger, retries=retries, breakers=breakers)
    engine.grant([0], broker.group.proof("group"))
    for _ in range(2):
        await MemoryCommands(broker).send(RunRequested(run_id=str(uuid4()), agent="default", input="go"))
    await engine.notes.until(lambda: len(engine.notes.ended) == 2, 10)
    await engine.close()
    assert lost == [0]


async def test_time_that_a_breaker_holds_a_run_back_is_not_time_without_progress() -> None:
    broker, ledger, calls = MemoryBroker(1), Ledger(), 0
    broker.group.join("group")

    def reply(request: ModelRequest) -> ModelAnswer:
        nonlocal calls
        calls += 1
        if calls <= POLICY.failures:
            raise OVERLOAD
        return text("done")

    breakers = Breakers(BreakerPolicy(failures=POLICY.failures, pause=1.5))
    engine = Engine(MemoryLog(broker), ScriptedModel(reply), ledger, retries=NoRetry([0.01] * 9), breakers=breakers)
    engine.grant([0], broker.group.proof("group"))
    run_id = str(uuid4())
    limits = Limits(progress_timeout_ms=600)
    await MemoryCommands(broker).send(RunRequested(run_id=run_id, agent="default", input="go", limits=limits))
    await engine.notes.until(lambda: run_id in engine.notes.ended)
    await engine.close()
    assert engine.notes.ended[run_id].status is Status.SUCCEEDED
