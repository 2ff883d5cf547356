"""``python -m tests.chaos --short|--long [--only NAME …] [--seed N]``: each check prints one line; exit code 1 when one fails.

Kafka: the one of RUNFOLD_TEST_BOOTSTRAP, or one of its own. Checks that kill brokers start their own in any case.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

from runfold.local import Kafka
from tests.chaos.checks import CHECKS, Check, Setting
from tests.chaos.figures import Report, Verdict


def main() -> int:
    words = _words()
    seed = words.seed if words.seed is not None else SystemRandom().randrange(1_000_000)
    chosen = [check for check in CHECKS if not words.only or check.name in words.only]
    logging.getLogger("runfold").setLevel(logging.CRITICAL)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="runfold-chaos-") as root, _broker(Path(root)) as bootstrap:
        verdicts = [_try(check, Setting(bootstrap, Path(root), seed, words.long)) for check in chosen]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)
    print(f"{len(verdicts)} checks: {counts}")
    return int(Verdict.FAIL in verdicts)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--short", action="store_true", help="a few faults of each kind")
    how.add_argument("--long", action="store_true", help="as many as the targets speak of")
    parser.add_argument("--only", action="append", choices=[check.name for check in CHECKS], help="this check; may be repeated")
    parser.add_argument("--seed", type=int, help="of what is chosen at random; default: a new one, which is printed")
    return parser.parse_args()


@contextlib.contextmanager
def _broker(root: Path) -> Iterator[str]:
    if given := os.environ.get("RUNFOLD_TEST_BOOTSTRAP"):
        yield given
        return
    with Kafka(root / "kafka") as kafka:
        yield kafka.bootstrap


def _try(check: Check, setting: Setting) -> Verdict:
    """Run it and print its line. What it could not even try is a failure too."""
    began = time.monotonic()
    try:
        report = asyncio.run(check.run(setting))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        report = Report(check.name, broken=[f"{type(error).__name__}: {str(error)[:300]}"])
    print(f"{check.name} ({time.monotonic() - began:.0f} s): {report}", flush=True)
    return report.verdict


if __name__ == "__main__":
    sys.exit(main())
