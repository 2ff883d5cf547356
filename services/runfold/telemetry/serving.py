"""``/healthz``, ``/readyz`` and ``/metrics`` of a process that serves nothing else, from threads of their own.

A process whose loop is blocked still answers here, and says so: whoever judges it must not depend on what is judged.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from runfold.core.errors import ConfigError

REQUEST_SECONDS = 10.0  # for a connection that says nothing

Troubles = Callable[[], Mapping[str, str]]
"""What keeps a process from doing its work, by what is troubled. Empty: it is ready. Called from any thread; quick."""


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True  # the next worker process takes the port of the last one
    daemon_threads = True
    registry: CollectorRegistry
    troubles: Troubles


class _Exchange(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/healthz":
                self._answer(200, {"status": "ok"})
            case "/readyz":
                troubles = self.server.troubles()
                self._answer(503 if troubles else 200, {"status": "not ready" if troubles else "ready", "checks": dict(troubles)})
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("accept", ""))
                self._send(200, content_type, encode(self.server.registry))
            case _:
                self._answer(404, {"status": "not found", "paths": ["/healthz", "/readyz", "/metrics"]})

    def _answer(self, status: int, body: Mapping[str, object]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Probes are no news."""


def expose(registry: CollectorRegistry, troubles: Troubles, host: str, port: int) -> int:
    """Serve from now on, for as long as the process lives; the bound port. Raises `ConfigError`: the address cannot be had."""
    kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if ":" in host else _Server
    try:
        server: _Server = kind((host, port), _Exchange)
    except OSError as error:
        where = f"{host} port {port}"
        raise ConfigError(f"metrics cannot be served on {where}: {error.strerror}; free it or choose another") from None
    os.register_at_fork(after_in_child=server.socket.close)  # what a tool forks may outlive us, and must not keep the port
    server.registry, server.troubles = registry, troubles
    Thread(target=server.serve_forever, name="runfold-health", daemon=True).start()
    return int(server.server_address[1])
