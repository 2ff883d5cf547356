"""The composition root: here, and only here, the ports meet their adapters."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Event

from prometheus_client import CollectorRegistry

from runfold.agents import App, load_app
from runfold.api import create_app, serve
from runfold.config import Settings
from runfold.core.errors import ConfigError
from runfold.core.events import Usage
from runfold.log.codec import Codec, codec_for
from runfold.log.kafka import KafkaCommands, KafkaLog, KafkaMembership, KafkaTail, check_topic
from runfold.log.kafka.source import KafkaSource
from runfold.model import Backoff, BreakerPolicy, Breakers, Prices, RetryPolicy, TimeLimited
from runfold.model.anthropic import AnthropicModel
from runfold.telemetry.logs import speak
from runfold.telemetry.metrics import ProjectorMetrics, WorkerMetrics
from runfold.telemetry.projection import ProjectionWatch
from runfold.telemetry.serving import expose
from runfold.telemetry.watch import Watch
from runfold.worker.lease import CONFIG_EXIT, Keeper, attend
from runfold.worker.resources import Resources
from runfold.worker.vitals import Blocked, Vitals
from runfold.worker.worker import Worker
from runfold_projector.service import Projector
from runfold_projector.store import Reader, Writer

log = logging.getLogger("runfold")

COUNT_SECONDS = 1.0  # between two looks at how many runs are open
FAILED_EXIT = 70  # an exception nobody expected; the keeper starts the next worker

FORK = get_context("forkserver")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker process is made from; it crosses a process boundary."""

    settings: Settings
    app: str
    name: str


class DatedPrices:
    """Prices by the broker's day."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices

    def cost(self, model: str, usage: Usage, at: int) -> Decimal | None:
        return self._prices.cost(model, usage, datetime.fromtimestamp(at / 1000, UTC).date())

    def knows(self, model: str, at: int) -> bool:
        return self.cost(model, Usage(), at) is not None


def codec(settings: Settings) -> Codec:
    return codec_for(settings.registry_url, settings.topic)


def check_log(settings: Settings) -> None:
    """Refuse a topic that Runfold cannot rely on, before anything starts. Raises `TopicMismatch`, `LogUnavailable`."""
    log.info("topic %s: %d partitions", settings.topic, check_topic(settings))


# ---- the worker


def keeper(spec: WorkerSpec) -> Keeper:
    return Keeper(lambda: KafkaMembership(spec.settings), lambda: hire(spec), spec.settings.drain_seconds)


def hire(spec: WorkerSpec) -> tuple[BaseProcess, Connection]:
    """Fork a worker from the server that has everything imported; our end of its pipe."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=work, args=(theirs, spec), daemon=True, name=spec.name)
    process.start()
    theirs.close()
    return process, ours


def preload() -> None:
    """Before the first `hire`: the fork server imports this module once, and all workers are forked from it.

    It must not be hit by the signals of a terminal: workers end when their keeper closes the pipe.
    """
    FORK.set_forkserver_preload([__name__])


def work(pipe: Connection, spec: WorkerSpec) -> None:
    """The worker process, from fork to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    speak(spec.settings.log_format, spec.name)
    try:
        app = load_app(spec.app)
        asyncio.run(_work(pipe, spec, app))
    except ConfigError as error:
        log.error("%s", error)
        os._exit(CONFIG_EXIT)


async def _work(pipe: Connection, spec: WorkerSpec, app: App) -> None:
    settings = spec.settings
    registry = CollectorRegistry()
    watch = Watch(spec.name, WorkerMetrics(registry))
    worker = Worker(await _resources(spec, app, watch), settings.drain_seconds, _failed)
    vitals = Vitals(worker)
    _publish(vitals, watch.metrics)
    if settings.metrics_port:
        expose(registry, vitals.troubles, settings.host, settings.metrics_port)
    await asyncio.gather(attend(pipe, worker), vitals.watch(), _count(worker, watch))


def _publish(vitals: Vitals, metrics: WorkerMetrics) -> None:
    """What is judged anew at each scrape, whatever the loop does."""
    metrics.loop_age.set_function(lambda: vitals.loop_age)
    for reason in Blocked:
        metrics.blocked.labels(reason).set_function(partial(vitals.blocked, reason))


async def _resources(spec: WorkerSpec, app: App, watch: Watch) -> Resources:
    settings = spec.settings
    kafka = await KafkaLog.open(settings, codec(settings))
    return Resources(
        worker=spec.name,
        build=version("runfold"),
        log=kafka,
        ends=lambda: kafka.ends,
        read_at=lambda: kafka.read_at,
        model=TimeLimited(
            AnthropicModel(base_url=settings.model_base_url or None), settings.first_byte_seconds, settings.idle_seconds
        ),
        agents=app,
        pricing=DatedPrices(Prices.load()),
        retries=RetryPolicy(
            attempts=settings.model_attempts,
            base=settings.backoff_base_seconds,
            cap=settings.backoff_cap_seconds,
            retry_after_cap=settings.retry_after_cap_seconds,
            overload=Backoff(
                attempts=settings.overload_attempts,
                base=settings.overload_base_seconds,
                cap=settings.overload_cap_seconds,
            ),
        ),
        breakers=Breakers(
            BreakerPolicy(
                failures=settings.breaker_failures, pause=settings.breaker_pause_seconds, cap=settings.breaker_cap_seconds
            ),
            watch.held,
        ),
        observer=watch,
        overlap=settings.overlap,
        max_model_calls=settings.max_model_calls,
        max_tool_calls=settings.max_tool_calls,
        beat_seconds=settings.heartbeat_ms / 1000,
        silence_seconds=settings.session_timeout_ms / 2000,
    )


async def _count(worker: Worker, watch: Watch) -> None:
    while True:
        partitions = worker.partitions.values()
        runs = (run for partition in partitions for run in partition.shard.runs.values())
        watch.count_runs(runs, sum(len(partition.gaps.parked) for partition in partitions))
        await asyncio.sleep(COUNT_SECONDS)


def _failed(error: BaseException) -> None:
    log.critical("the worker cannot go on: %s", error, exc_info=error)
    os._exit(FAILED_EXIT)


# ---- the API


async def serve_api(settings: Settings, on_bound: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT. PostgreSQL may be away: it is asked when it is needed."""
    one_codec = codec(settings)
    commands, tail = KafkaCommands(settings, one_codec), await KafkaTail.open(settings, one_codec)
    reads = Reader(settings.dsn, settings.topic)
    try:
        app = create_app(
            commands, reads, tail, max_body_bytes=settings.max_body_bytes, stalled_seconds=settings.stalled_seconds
        )
        await serve(app, settings.host, settings.port, on_bound=on_bound)
    finally:
        await asyncio.gather(commands.close(), tail.close(), reads.close())


# ---- the projector


def project(settings: Settings, schema: str, stop: Event) -> None:
    """Project until ``stop``."""
    one_codec, registry = codec(settings), CollectorRegistry()
    metrics = ProjectorMetrics(registry)
    projector = Projector(
        lambda: KafkaSource(settings, one_codec),
        lambda: Writer.open(settings.dsn, settings.topic, schema),
        ProjectionWatch(metrics),
    )
    metrics.lag_seconds.set_function(lambda: projector.lag.seconds)
    metrics.lag_records.set_function(lambda: projector.lag.records)
    metrics.stable_offset_age.set_function(lambda: projector.stable.age)
    if settings.metrics_port:
        expose(registry, projector.troubles, settings.host, settings.metrics_port)
    projector.run(stop)
