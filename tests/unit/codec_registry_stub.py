"""A schema registry on the loopback that speaks the part of Confluent's REST API that Runfold uses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Shelf:
    """What a registry keeps: schemas by id, ids by subject. ``calls`` are the requests that came, in order."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.authorization: str | None = None
        self.answer: tuple[int, str] | None = None  # given to every request, instead of the right one
        self.url = ""

    def put(self, schema: str) -> int:
        for known, text in self.schemas.items():
            if text == schema:
                return known
        self.schemas[len(self.schemas) + 1] = schema
        return len(self.schemas)

    def lookup(self, subject: str, schema: str) -> tuple[int, Any]:
        for known in self.subjects.get(subject, []):
            if self.schemas[known] == schema:
                return 200, {"subject": subject, "id": known, "version": 1, "schema": schema}
        return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}

    def register(self, subject: str, schema: str) -> tuple[int, Any]:
        self.subjects.setdefault(subject, []).append(self.put(schema))
        return 200, {"id": self.put(schema)}

    def by_id(self, schema_id: int) -> tuple[int, Any]:
        if schema_id in self.schemas:
            return 200, {"schema": self.schemas[schema_id]}
        return 404, {"error_code": 40403, "message": f"Schema {schema_id} not found"}


class _Requests(BaseHTTPRequestHandler):
    shelf: ClassVar[Shelf]

    def do_GET(self) -> None:
        self._reply(lambda: self.shelf.by_id(int(self.path.rpartition("/")[2])))

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        subject = self.path.split("/")[2]
        verb = self.shelf.register if self.path.endswith("/versions") else self.shelf.lookup
        self._reply(lambda: verb(subject, schema))

    def _reply(self, right: Any) -> None:
        self.shelf.calls.append(f"{self.command} {self.path}")
        self.shelf.authorization = self.headers["Authorization"]
        status, body = self.shelf.answer or right()
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@contextmanager
def serving(shelf: Shelf, port: int = 0) -> Iterator[Shelf]:
    """Serve ``shelf`` on a free port, or on ``port``; ``shelf.url`` says where."""
    with ThreadingHTTPServer(("127.0.0.1", port), type("Requests", (_Requests,), {"shelf": shelf})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        shelf.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield shelf
        finally:
            server.shutdown()
            thread.join()
