"""The HTTP API put together from its ports. It produces commands and reads the projection; it never decides."""

from collections.abc import Mapping
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from runfold.api import probes, problems, routes
from runfold.api.body import BodyGuard
from runfold.api.exchanges import Exchanges, Observe, measured, told
from runfold.api.freshness import STALLED_SECONDS, Freshness
from runfold.api.idempotency import Submissions
from runfold.api.probes import Probe
from runfold.api.reads import Reads
from runfold.ports import Commands, ReadModel, Tail
from runfold.telemetry.metrics import ApiMetrics

MAX_BODY_BYTES = 1_000_000
BODY_SECONDS = 30.0

_DESCRIPTION = "Durable agent runs. Every error has the shape of `ErrorBody`; its codes are listed in docs/http-api.md."


def create_app(
    commands: Commands,
    projection: ReadModel,
    tail: Tail,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    registry: CollectorRegistry | None = None,
    observe: Observe = told,
    ready: Mapping[str, Probe] | None = None,
    stalled_seconds: float = STALLED_SECONDS,
) -> FastAPI:
    """The ASGI application. The ports stay the caller's to close.

    A body may have ``max_body_bytes`` and must be complete within ``body_seconds``. ``/metrics`` shows ``registry``, to which the
    API's own metrics are added. ``observe`` is told of each exchange, by default it writes a log line. ``ready`` replaces the
    questions that ``/readyz`` asks. A run without progress for ``stalled_seconds`` counts as stalled; with tables older
    than that the API is not ready.
    """
    registry = CollectorRegistry() if registry is None else registry
    app = FastAPI(
        title="Runfold",
        version=version("runfold"),
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,  # their pages load scripts from somebody else's server
        redoc_url=None,
    )
    metrics, reads = ApiMetrics(registry), Reads(projection, tail)
    freshness = Freshness(projection, tail, metrics, stalled_seconds)
    app.state.service = routes.Service(commands, projection, reads, Submissions(commands, reads))
    app.include_router(routes.router)
    ready = probes.probes_of(projection, tail, stalled_seconds) if ready is None else ready
    app.include_router(probes.routes(ready, registry, freshness.refresh))
    problems.install(app)
    app.add_middleware(BodyGuard, max_bytes=max_body_bytes, seconds=body_seconds)
    app.add_middleware(Exchanges, observers=(measured(metrics), observe))
    return app
