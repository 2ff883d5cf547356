"""Two stacks and one directory: the second says whom it waits for."""

import os
import re
from pathlib import Path

import pytest

from runfold.core.errors import StackError
from runfold.local import lock
from runfold.local.lock import locked


def test_who_waits_says_for_whom_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SAY_AFTER", 0.0)
    told: list[tuple[str, int, int]] = []
    first = locked(tmp_path / "lock")
    first.__enter__()

    def progress(what: str, done: int, total: int) -> None:
        told.append((what, done, total))
        if not done:
            first.__exit__(None, None, None)

    with locked(tmp_path / "lock", progress):
        what = f"waiting for {tmp_path}: it is in use by another stack (pid {os.getpid()})"
        assert told == [(what, 0, 1), (what, 1, 1)]


def test_who_waited_in_vain_says_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_TIMEOUT", 0.1)
    said = re.escape(f"in use by another stack (pid {os.getpid()}): stop it")
    with locked(tmp_path / "lock"), pytest.raises(StackError, match=said), locked(tmp_path / "lock"):
        pass
