"""How our processes speak: one line per event, for people on a terminal, as one ECS JSON object elsewhere.

Everything that ends up on stderr or stdout goes this way, warnings and uncaught exceptions included.
"""

import logging
import sys
import threading
import warnings
from types import TracebackType
from typing import IO, Literal

import ecs_logging

from runfold.telemetry.output import Facts, capture

LogFormat = Literal["auto", "console", "ecs"]


class ConsoleFormatter(logging.Formatter):
    """The message alone for what people follow; level and logger for the rest."""

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.INFO and not record.exc_info:
            return record.getMessage()
        text = f"{record.levelname} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def speak(
    log_format: LogFormat,
    service: str,
    *,
    stream: IO[str] | None = None,
    level: int = logging.INFO,
    printing: Facts | None = None,
) -> None:
    """Set this process's logging up, once. ``service`` is the ECS service.name, e.g. ``worker-1a2b``.

    ``printing``: user code runs here. What it prints becomes log records with these fields, unless people read along."""
    out = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    formatter = ConsoleFormatter() if console else ecs_logging.StdlibFormatter(extra={"service.name": service})
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "anthropic", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    warnings.simplefilter("default")
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable
    if printing is not None and not console:
        capture(handler, printing)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logging.getLogger("runfold").critical("uncaught exception: %s", error, exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        where = args.thread.name if args.thread else "gone"
        _tell(f"uncaught exception in thread {where}", args.exc_type, args.exc_value, args.exc_traceback)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    """Of a ``__del__`` and the like. Its object is not shown: its ``repr`` may fail, or bring it back to life."""
    _tell(args.err_msg or "exception ignored", args.exc_type, args.exc_value, args.exc_traceback)


def _tell(what: str, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    logging.getLogger("runfold").error("%s: %s", what, error, exc_info=(kind, error or Exception(kind.__name__), trace))
