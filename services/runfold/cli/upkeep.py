"""The workers of `runfold dev`: it says when they carry runs, and starts one again that is killed, as in a try of kill -9."""

import time
from collections import deque
from collections.abc import Callable, Mapping

import httpx

from runfold.cli.deployment import Deployment
from runfold.core.errors import StackError
from runfold.local import loopback

REVIVALS, WINDOW = 3, 60.0  # as many within so many seconds: then something is wrong with the workers or the machine
ASK_SECONDS = 1.0
OWNED = "runfold_partitions_owned "
HERE = {"0.0.0.0": loopback.HOST, "::": "::1"}  # where a process is reached that listens everywhere


class Upkeep:
    """`start` workers, then `look` every now and then. ``say`` is told what people want to know, a line at a time."""

    def __init__(self, deployment: Deployment, partitions: int, say: Callable[[str], object]) -> None:
        self._deployment, self._partitions, self._say = deployment, partitions, say
        self._urls: dict[str, str] = {}  # by name of the worker: where it says how it is
        self._revived: deque[float] = deque(maxlen=REVIVALS)
        self._ready = False
        self._http = httpx.Client(timeout=ASK_SECONDS, trust_env=False)

    def start(self, name: str, app: str, environment: Mapping[str, str]) -> None:
        """A worker that can be asked, on a port of this machine alone where ``RUNFOLD_METRICS_PORT`` gives none."""
        host, port, given = self._deployment.settings.host, 0, {}
        if not self._deployment.settings.metrics_port:
            (port,) = loopback.choose(self._deployment.root / f"{name}.port", [0])
            host, given = loopback.HOST, {"RUNFOLD_HOST": loopback.HOST, "RUNFOLD_METRICS_PORT": str(port)}
        self._deployment.start_worker(name, app, {**environment, **given})
        self._urls[name] = loopback.url(HERE.get(host, host), port or self._deployment.metrics_ports[name])

    def look(self) -> None:
        """Raises `StackError` when something else than a worker has ended, a worker of itself, or too many were killed."""
        for name, how in self._deployment.check_alive(revive=self._urls).items():
            self._count(name, how)
            self._say(f"{name} {how}: a new one is started")
            self._ready = False
        if not self._ready and self._carried():
            self._ready = True
            self._say(f"ready       {_workers(len(self._urls))} all {self._partitions} partitions: runs are carried")

    def _count(self, name: str, how: str) -> None:
        now = time.monotonic()
        if len(self._revived) == REVIVALS and now - self._revived[0] < WINDOW:
            before = f"within {WINDOW:.0f} s after {REVIVALS} others, which were started again"
            raise StackError(f"{name} {how}, {before}: end what kills them; what they said is in {self._deployment.root}")
        self._revived.append(now)

    def _carried(self) -> bool:
        """Whether all workers say that they are ready, and own all partitions together."""
        try:
            ready = all(map(self._is_ready, self._urls.values()))
            return ready and sum(map(self._owned, self._urls.values())) == self._partitions
        except httpx.HTTPError:  # not up yet
            return False

    def _is_ready(self, url: str) -> bool:
        return self._http.get(f"{url}/readyz").is_success

    def _owned(self, url: str) -> int:
        lines = self._http.get(f"{url}/metrics").text.splitlines()
        return sum(int(float(line.removeprefix(OWNED))) for line in lines if line.startswith(OWNED))


def _workers(count: int) -> str:
    return "1 worker owns" if count == 1 else f"{count} workers own"
