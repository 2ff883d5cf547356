"""A held worker process of the next version, whose answers of the model say something more. Started by `main`, with the words of
`runfold worker`."""

from multiprocessing.connection import Connection
from unittest import mock

from runfold.cli.wiring import worker
from runfold.cli.wiring.keeper import WorkerSpec
from runfold.core.events import ModelStepCompleted
from tests.cases import harness_worker
from tests.cases.newer_codec import NewerCodec

NEWER = ("-c", "from tests.cases.harness_newer import main; main()")


def work(pipe: Connection, spec: WorkerSpec) -> None:
    with mock.patch.object(worker, "codec", return_value=NewerCodec(ModelStepCompleted)):
        harness_worker.work(pipe, spec)


def main() -> None:
    harness_worker.main(__name__)
