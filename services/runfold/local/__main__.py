"""``python -m runfold.local DIR``: run the stack until Ctrl-C, and print how to reach it (for shells: ``export`` lines)."""

import contextlib
import signal
import sys
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local import LocalStack


def main(directory: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), LocalStack(Path(directory)) as stack:
        print(f"export RUNFOLD_TEST_BOOTSTRAP={stack.bootstrap}\nexport RUNFOLD_TEST_DSN={stack.dsn}", flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except StackError as error:
        sys.exit(f"runfold.local: {error}")
