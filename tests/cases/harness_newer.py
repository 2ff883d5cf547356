"""A held worker process of the next version, whose answers of the model say something more. Started by `main`, with the words of
`runfold worker`."""

from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from unittest import mock

from runfold.cli import wiring
from runfold.core.events import ModelStepCompleted
from tests.cases import harness_worker
from tests.cases.test_newer_version import NewerCodec

NEWER = ("-c", "from tests.cases.harness_newer import main; main()")


def hire(spec: wiring.WorkerSpec) -> tuple[BaseProcess, Connection]:
    ours, theirs = wiring.FORK.Pipe()
    process = wiring.FORK.Process(target=work, args=(theirs, spec), daemon=True, name=spec.name)
    process.start()
    theirs.close()
    return process, ours


def work(pipe: Connection, spec: wiring.WorkerSpec) -> None:
    with mock.patch.object(wiring, "codec", return_value=NewerCodec(ModelStepCompleted)):
        harness_worker.work(pipe, spec)


def main() -> None:
    with mock.patch.object(harness_worker, "hire", hire):
        harness_worker.main()
