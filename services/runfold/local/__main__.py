"""``python -m runfold.local DIR [--train]``: run the stack until Ctrl-C; print how the tests, or anybody, can reach it."""

import argparse
import contextlib
import signal
import sys
from pathlib import Path

from rich.console import Console

from runfold.core.errors import StackError
from runfold.local.display import shown
from runfold.local.jars import KafkaJars
from runfold.local.stack import LocalStack
from runfold.local.train import train


def main() -> None:
    parser = argparse.ArgumentParser("python -m runfold.local", description="A real Kafka and a real PostgreSQL, until Ctrl-C.")
    parser.add_argument("directory", type=Path, help="where their data is, or will be")
    parser.add_argument("--train", action="store_true", help="first record an archive that makes each later start of Kafka quick")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        _run(words.directory, words.train)


def _run(directory: Path, training: bool) -> None:
    jars = KafkaJars()
    with contextlib.ExitStack() as open_until_the_end:
        with shown(Console(stderr=True)) as progress:
            if training:
                train(jars, progress)
            stack = open_until_the_end.enter_context(LocalStack(directory, jars=jars, progress=progress))
        print(f"export RUNFOLD_TEST_BOOTSTRAP={stack.bootstrap}\nexport RUNFOLD_TEST_DSN={stack.dsn}", flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        main()
    except StackError as error:
        sys.exit(f"runfold.local: {error}")
