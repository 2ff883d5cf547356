"""The worker process: what the keeper forks."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client import CollectorRegistry

from runfold.agents import App, load_app
from runfold.cli.wiring.keeper import WorkerSpec
from runfold.cli.wiring.topic import codec
from runfold.config import Settings
from runfold.core.errors import ConfigError
from runfold.log.codec import Codec
from runfold.log.kafka import KafkaLive, KafkaLog
from runfold.model import Backoff, BreakerPolicy, Breakers, DatedPrices, Prices, RetryPolicy, TimeLimited
from runfold.model.anthropic import AnthropicModel
from runfold.telemetry.logs import speak
from runfold.telemetry.metrics import WorkerMetrics
from runfold.telemetry.serving import expose
from runfold.telemetry.watch import Watch
from runfold.tools.context import call_fields
from runfold.worker.lease import CONFIG_EXIT, attend
from runfold.worker.resources import Resources
from runfold.worker.vitals import Blocked, Vitals
from runfold.worker.worker import Worker

log = logging.getLogger("runfold")
Codec()  # reads the schemas: here, so once in the fork server, and not in each worker's first 20 ms

COUNT_SECONDS = 1.0  # between two looks at how many runs are open
Make = Callable[[WorkerSpec, App, Watch], Awaitable[Resources]]
FAILED_EXIT = 70  # an exception nobody expected; the keeper starts the next worker


def work(pipe: Connection, spec: WorkerSpec, make: Make | None = None) -> None:
    """The worker process, from fork to end. ``make``: in place of `resources`."""
    answer_no_signals()
    speak(spec.settings.log_format, spec.name, printing=call_fields)
    try:
        app = load_app(spec.app)
        asyncio.run(_work(pipe, spec, app, make or resources))
    except ConfigError as error:
        log.error("%s", error)
        os._exit(CONFIG_EXIT)


def answer_no_signals() -> None:
    """The keeper does, and a worker ends when it closes the pipe.

    SIGINT is ignored, and so by what tools start: Ctrl-C reaches all that belong to a terminal, and a drain lets tools finish.
    SIGTERM has a handler, which no other program inherits: a tool must be able to terminate what it started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)


async def _work(pipe: Connection, spec: WorkerSpec, app: App, make: Make) -> None:
    settings = spec.settings
    registry = CollectorRegistry()
    watch = Watch(spec.name, WorkerMetrics(registry))
    worker = Worker(await make(spec, app, watch), settings.drain_seconds, _failed)
    vitals = Vitals(worker)
    publish(vitals, watch.metrics)
    if settings.metrics_port:
        expose(registry, vitals.troubles, settings.host, settings.metrics_port)
    await asyncio.gather(attend(pipe, worker), vitals.watch(), _count(worker, watch))


def publish(vitals: Vitals, metrics: WorkerMetrics) -> None:
    """What is judged anew at each scrape, whatever the loop does."""
    metrics.loop_age.set_function(lambda: vitals.loop_age)
    for reason in Blocked:
        metrics.blocked.labels(reason).set_function(partial(vitals.blocked, reason))


async def resources(spec: WorkerSpec, app: App, watch: Watch) -> Resources:
    """What a worker works with: every adapter, from the settings."""
    settings = spec.settings
    kafka = await KafkaLog.open(settings, codec(settings))
    return Resources(
        worker=spec.name,
        build=version("runfold"),
        log=kafka,
        ends=lambda: kafka.ends,
        read_at=lambda: kafka.read_at,
        heard_at=lambda: kafka.heard_at,
        model=TimeLimited(
            AnthropicModel(base_url=settings.model_base_url or None), settings.first_byte_seconds, settings.idle_seconds
        ),
        agents=app,
        pricing=DatedPrices(Prices.load(Path(settings.prices) if settings.prices else None)),
        retries=_retries(settings),
        breakers=Breakers(_breaker(settings), watch.held),
        observer=watch,
        live=KafkaLive(settings, watch.metrics.live_dropped.inc) if settings.live else None,
        overlap=settings.overlap,
        max_model_calls=settings.max_model_calls,
        max_tool_calls=settings.max_tool_calls,
        beat_seconds=settings.heartbeat_ms / 1000,
        silence_seconds=settings.session_timeout_ms / 2000,
    )


def _retries(settings: Settings) -> RetryPolicy:
    overloads = Backoff(
        attempts=settings.overload_attempts, base=settings.overload_base_seconds, cap=settings.overload_cap_seconds
    )
    mishaps = Backoff(attempts=settings.model_attempts, base=settings.backoff_base_seconds, cap=settings.backoff_cap_seconds)
    return RetryPolicy(overloads=overloads, mishaps=mishaps, retry_after_cap=settings.retry_after_cap_seconds)


def _breaker(settings: Settings) -> BreakerPolicy:
    return BreakerPolicy(
        failures=settings.breaker_failures, pause=settings.breaker_pause_seconds, cap=settings.breaker_cap_seconds
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
