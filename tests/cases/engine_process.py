"""One worker in the test's own process, and the seat that stands for its keeper: what `engine_scene` is played by."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from prometheus_client import CollectorRegistry

from runfold.log.memory import MemoryBroker, MemoryLog
from runfold.log.memory.group import Group
from runfold.model import Backoff, BreakerPolicy, Breakers, DatedPrices, Prices, RetryPolicy, TimeLimited
from runfold.model.anthropic import AnthropicModel
from runfold.ports import Grant, Observer
from runfold.telemetry.metrics import WorkerMetrics
from runfold.telemetry.watch import Watch
from runfold.worker.resources import Agents, Resources
from runfold.worker.worker import Worker

BACKOFF = Backoff(attempts=3, base=0.02, cap=0.2)
BREAKER = BreakerPolicy(pause=0.05, cap=0.2)


def same_for_all(backoff: Backoff) -> RetryPolicy:
    """Failures of both kinds are tried again alike."""
    return RetryPolicy(overloads=backoff, mishaps=backoff)


class Fanout:
    """One observer made of several."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._tell, name)

    def _tell(self, name: str, *facts: Any) -> None:
        for observer in self._observers:
            getattr(observer, name)(*facts)


class Seat:
    """What a keeper does, without its process: a member of the group that says every 10 ms what its worker may own."""

    def __init__(self, group: Group, name: str, worker: Worker) -> None:
        self._group, self._name, self._worker = group, name, worker
        self._owned: frozenset[int] = frozenset()
        self.frozen = False  # as by SIGSTOP: it says nothing more
        self.retiring = False  # as by SIGTERM: everything is given back
        self.empty = asyncio.Event()  # and nothing is held any more
        group.join(name)

    async def beat(self) -> None:
        while True:
            if not self.frozen:
                self._worker.granted(self._grant())
            if self.retiring and not self._worker.held:
                self.empty.set()
            await asyncio.sleep(0.01)

    def _grant(self) -> Grant:
        if not self._group.has(self._name):  # expelled
            self._owned = frozenset()
            self._group.join(self._name)
            return Grant(at=time.monotonic())
        leaving = self._owned - (frozenset() if self.retiring else self._group.target(self._name))
        if leaving and not leaving & self._worker.held:
            self._group.release(leaving)
            leaving = frozenset()
        self._owned = leaving if self.retiring else self._group.take(self._name) | leaving
        return Grant(self._owned - leaving, leaving, self._group.proof(self._name), time.monotonic())

    def leave(self) -> None:
        self._group.leave(self._name)


class Process:
    """One worker. ``kill`` ends it as SIGKILL would: nothing of it reaches log or API any more."""

    def __init__(
        self,
        name: str,
        broker: MemoryBroker,
        api_url: str,
        agents: Agents,
        notes: Observer,
        failed: Callable[[BaseException], None],
        options: Mapping[str, Any],
    ) -> None:
        """``options`` are fields of `Resources`, ``first_byte`` and ``idle`` of the model, and ``drain_seconds``."""
        self.name, self.log = name, MemoryLog(broker)
        self.model = AnthropicModel(api_key="sk-ant-test", base_url=api_url)
        self.registry = CollectorRegistry()
        observer = cast(Observer, Fanout(notes, Watch(name, WorkerMetrics(self.registry))))
        settings: dict[str, Any] = {
            "pricing": DatedPrices(Prices.load()),
            "retries": same_for_all(BACKOFF),
            "breakers": Breakers(BREAKER),
            "beat_seconds": 0.02,
            **options,
        }
        clocks = settings.pop("first_byte", 10.0), settings.pop("idle", 10.0)
        drain = settings.pop("drain_seconds", 10.0)
        self.resources = Resources(
            worker=name,
            build="test",
            log=self.log,
            model=TimeLimited(self.model, *clocks),
            agents=agents,
            observer=observer,
            **settings,
        )
        self.worker = Worker(self.resources, drain, failed)
        self.seat = Seat(broker.group, name, self.worker)
        self._beating = asyncio.create_task(self.seat.beat())

    async def retire(self) -> None:
        """End as after SIGTERM: what runs is finished, nothing is begun."""
        self.seat.retiring = True
        await self.seat.empty.wait()
        await self.kill()

    async def kill(self) -> None:
        self._beating.cancel()
        self.seat.leave()
        await self.worker.close()
        await self.log.close()
        await self.model.close()

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0
