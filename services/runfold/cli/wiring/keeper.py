"""The keeper process, and how it comes by its workers."""

from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from runfold.config import Settings
from runfold.log.kafka import KafkaMembership
from runfold.worker.lease import Keeper

WORKER = "runfold.cli.wiring.worker"  # the module whose ``work`` is the worker process
_FORK = get_context("forkserver")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker process is made from; it crosses a process boundary."""

    settings: Settings
    app: str
    name: str


def keeper(spec: WorkerSpec) -> Keeper:
    """The keeper of workers that are made from ``spec``; it blocks in ``run``. Call `preload` first."""
    settings = spec.settings
    return Keeper(
        lambda: KafkaMembership(settings), lambda: hire(spec), settings.drain_seconds, settings.session_timeout_ms / 1000
    )


def preload() -> None:
    """Before the first `hire`: the fork server imports `WORKER` once, and all workers are forked from it."""
    _FORK.set_forkserver_preload([WORKER])


def hire(spec: WorkerSpec) -> tuple[BaseProcess, Connection]:
    """Fork a worker from the server that has everything imported; our end of its pipe."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_work, args=(WORKER, theirs, spec), daemon=True, name=spec.name)
    process.start()
    theirs.close()
    return process, ours


def _work(module: str, pipe: Connection, spec: WorkerSpec) -> None:
    """In the worker process."""
    import_module(module).work(pipe, spec)
