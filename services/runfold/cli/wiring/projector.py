"""The projector process."""

from threading import Event

from prometheus_client import CollectorRegistry

from runfold.cli.wiring.topic import codec
from runfold.config import Settings
from runfold.log.kafka.source import KafkaSource
from runfold.telemetry.metrics import ProjectorMetrics
from runfold.telemetry.projection import ProjectionWatch
from runfold.telemetry.serving import expose
from runfold_projector.service import Projector
from runfold_projector.store import Writer


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
