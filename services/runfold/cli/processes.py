"""Commands that are processes of a deployment: worker, api, projector. Each runs until SIGTERM or Ctrl-C."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.options import Bootstrap, Dsn, Group, Topic, need_bootstrap, need_dsn, settings
from runfold.core.errors import ConfigError
from runfold.local.loopback import url
from runfold.telemetry.logs import speak

log = logging.getLogger("runfold")


def worker(
    app: Annotated[str, typer.Option(help="Your agents: file.py:name or package.module:name.")],
    name: Annotated[str, typer.Option(help="In leases, rows and logs; default: made up.")] = "",
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    group: Group = None,
) -> None:
    """Carry runs: a keeper process that holds the lease, and the worker process that it restarts."""
    from runfold.cli.wiring.keeper import WorkerSpec, keeper, preload  # libraries that other commands do without
    from runfold.cli.wiring.topic import check_log

    chosen = need_bootstrap(settings(bootstrap=bootstrap, topic=topic, group=group))
    name = name or f"worker-{os.urandom(3).hex()}"
    _on_stop(lambda: sys.exit(0))  # nothing is held yet
    preload()
    speak(chosen.log_format, name)
    app = absolute(app)
    check_log(chosen)
    holder = keeper(WorkerSpec(chosen, app, name))
    _on_stop(holder.stop)
    holder.run()


def _on_stop(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def absolute(app: str) -> str:
    """The same app for a process that may have another working directory. A missing file is said before anything starts."""
    place, colon, name = app.rpartition(":") if ".py:" in app else (app, "", "")
    if not place.endswith(".py"):
        return app
    try:
        if not Path(place).is_file():
            raise ConfigError(f"app {app!r}: there is no file {place}")
        return f"{Path(place).resolve()}{colon}{name}"
    except OSError as error:
        raise ConfigError(f"app {app!r}: {place} cannot be read: {error.strerror}") from None


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on (RUNFOLD_HOST).", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: a free one (RUNFOLD_PORT).", show_default=False)] = None,
    bootstrap: Bootstrap = None,
    dsn: Dsn = None,
    topic: Topic = None,
    ready_file: Annotated[Path | None, typer.Option(help="Write the URL here once it listens.", show_default=False)] = None,
) -> None:
    """Serve the HTTP API."""
    from runfold.cli.wiring.api import serve_api
    from runfold.cli.wiring.topic import check_log

    chosen = need_dsn(need_bootstrap(settings(host=host, port=port, bootstrap=bootstrap, dsn=dsn, topic=topic)))
    speak(chosen.log_format, "api")
    check_log(chosen)

    def bound(number: int) -> None:
        address = url(chosen.host, number)
        log.info("the API listens on %s", address)
        if ready_file is not None:
            _write(ready_file, address)

    asyncio.run(serve_api(chosen, bound))


def _write(ready_file: Path, address: str) -> None:
    try:
        ready_file.write_text(address)
    except OSError as error:
        raise ConfigError(f"--ready-file {ready_file} cannot be written: {error.strerror}; give another file") from None


def projector(
    bootstrap: Bootstrap = None,
    dsn: Dsn = None,
    topic: Topic = None,
    schema: Annotated[str, typer.Option(help="PostgreSQL schema of the tables.")] = "public",
) -> None:
    """Keep the tables in PostgreSQL up to date with the log."""
    from runfold.cli.wiring.projector import project

    chosen = need_dsn(need_bootstrap(settings(bootstrap=bootstrap, dsn=dsn, topic=topic)))
    speak(chosen.log_format, "projector")
    stop = threading.Event()
    _on_stop(stop.set)
    project(chosen, schema, stop)
    sys.exit(0)
