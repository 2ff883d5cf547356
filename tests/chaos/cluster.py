"""A cluster of three nodes on this machine: each is broker and controller, replication 3, two in-sync replicas at least."""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from runfold.core.errors import StackError
from runfold.local import Kafka, loopback
from runfold.local.process import GuardedProcess

NODES = 3
TUNED = {  # a dead node is missed after about 3 s instead of 10
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 250,
}


class Node(Kafka):
    """``voters``: the controllers' ports, by node id from 1; ``cluster``: the id that all nodes are formatted with."""

    def __init__(self, home: Path, node: int, port: int, voters: Sequence[int], cluster: str) -> None:
        super().__init__(home, port)
        self.node, self._voters, self._cluster = node, voters, cluster

    def _write(self, name: str, text: str) -> None:
        if name == "server.properties":
            controller = self._voters[self.node - 1]
            (self.home / "ports").write_text(f"{self.port} {controller}")
            text = "".join(f"{key}={value}\n" for key, value in {**_parsed(text), **self._own(controller)}.items())
        super()._write(name, text)

    def _own(self, controller: int) -> dict[str, object]:
        voters = ",".join(f"{id_}@{loopback.HOST}:{port}" for id_, port in enumerate(self._voters, 1))
        listeners = f"PLAINTEXT://{loopback.HOST}:{self.port},CONTROLLER://{loopback.HOST}:{controller}"
        return {"node.id": self.node, "controller.quorum.voters": voters, "listeners": listeners, **TUNED}

    def _run(self, command: Sequence[str], log: Path, lock: int) -> GuardedProcess:
        words = list(command)
        if "format" in words:
            words[words.index("-t") + 1] = self._cluster
        return super()._run(words, log, lock)


def _parsed(text: str) -> dict[str, object]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _kill(node: Node) -> None:
    with suppress(StackError):  # it does not run
        node.kill()


class Cluster:
    """Context manager: inside the block all nodes answer."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        ports = loopback.choose(root / "ports", [0] * (2 * NODES))
        cluster = "R" + secrets.token_urlsafe(16)[1:]
        self.nodes = [Node(root / f"node-{n + 1}", n + 1, ports[n], ports[NODES:], cluster) for n in range(NODES)]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.__exit__)
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Killed, not stopped: the last nodes of a cluster wait in vain for the others to take over from them."""
        with ExitStack() as each:
            for node in self.nodes:
                each.callback(node.stop)
                each.callback(_kill, node)
