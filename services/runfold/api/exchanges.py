"""Each answered request, for the log and the metrics: route templates and canonical run ids only, nothing a client can invent."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.api.run_ids import is_run_id
from runfold.telemetry.metrics import ApiMetrics

UNMATCHED = "unmatched"  # the route of a path that is none
OTHER = "OTHER"  # any method but these
METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = logging.getLogger("runfold.api")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer."""

    method: str
    route: str  # template
    status: int
    seconds: float
    run_id: str | None


Observe = Callable[[Exchange], None]


class Exchanges:
    """ASGI middleware that tells ``observers`` of every exchange once it is over."""

    def __init__(self, app: ASGIApp, observers: tuple[Observe, ...]) -> None:
        self._app, self._observers = app, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begun = 500, time.monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._tell(scope, status, time.monotonic() - begun)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = getattr(scope.get("route"), "path", UNMATCHED)
        run_id = scope.get("path_params", {}).get("id", "")
        exchange = Exchange(method, route, status, seconds, run_id if is_run_id(run_id) else None)
        for observe in self._observers:
            observe(exchange)


def measured(metrics: ApiMetrics) -> Observe:
    """An observer that counts and times exchanges."""

    def observe(exchange: Exchange) -> None:
        metrics.requests.labels(exchange.method, exchange.route, str(exchange.status)).inc()
        metrics.seconds.labels(exchange.method, exchange.route).observe(exchange.seconds)

    return observe


def told(exchange: Exchange) -> None:
    """An observer that writes a line per exchange: what the server failed as a warning, all else for debugging."""
    fields = {
        "http.request.method": exchange.method,
        "http.response.status_code": exchange.status,
        "http.route": exchange.route,
        "event.duration": round(exchange.seconds * 1e9),
    }
    if exchange.run_id is not None:
        fields["runfold.run.id"] = exchange.run_id
    level = logging.WARNING if exchange.status >= 500 else logging.DEBUG
    milliseconds = round(exchange.seconds * 1000)
    log.log(level, "%s %s %d %dms", exchange.method, exchange.route, exchange.status, milliseconds, extra=fields)
