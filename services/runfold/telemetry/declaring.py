"""How a metric is declared: a line in the body of a class, whose instances make and register their own.

After ``waiting = Metric(Gauge, "queue_waiting", "Who waits.", "why")`` in the class of ``metrics``, ``metrics.waiting`` is a
`prometheus_client.Gauge` with that label, to mypy too.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

M = TypeVar("M", bound=MetricWrapperBase)


class Metric(Generic[M]):
    """What it is, without a value. As an attribute of an `Exported`, the one of that instance, which has values; as one of the
    class, this."""

    def __init__(self, kind: Callable[..., M], name: str, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> None:
        self.kind, self.name, self.text, self.labels, self.buckets = kind, name, text, labels, buckets

    def make(self, registry: CollectorRegistry) -> M:
        options = {"buckets": self.buckets} if self.buckets else {}
        return self.kind(self.name, self.text, self.labels, registry=registry, **options)

    @overload
    def __get__(self, exported: None, _: object) -> Self: ...

    @overload
    def __get__(self, exported: "Exported", _: object) -> M: ...

    def __get__(self, exported: "Exported | None", _: object) -> Self | M:
        if exported is None:
            return self
        made: M = exported.made[self]
        return made


class Exported:
    """The metrics of a process: those that its class declares, each registered and counting from zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.made: dict[Metric[Any], Any] = {metric: metric.make(registry) for metric in self.declared()}

    @classmethod
    def declared(cls) -> list[Metric[Any]]:
        """In the order of the class's body."""
        return [value for value in vars(cls).values() if isinstance(value, Metric)]
