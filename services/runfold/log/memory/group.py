"""The consumer group of the memory broker, cooperative: a partition changes hands only after its old owner let it go."""

import logging
from collections.abc import Callable
from itertools import count

from runfold.core.errors import LogError
from runfold.log.wire import generation

_log = logging.getLogger("runfold.memory")


class Group:
    """Members in order of joining, what each should own, and who holds what."""

    def __init__(self, partitions: int) -> None:
        self.generation = 0
        self.held: dict[int, str] = {}  # by partition: the member that has not let it go
        self._partitions = partitions
        self._names = count(1)
        self._targets: dict[str, frozenset[int]] = {}

    def new_name(self) -> str:
        return f"member-{next(self._names)}"

    def join(self, member: str) -> None:
        self._targets[member] = frozenset()
        self._rebalance()

    def leave(self, member: str) -> None:
        """Also what happens to a member whose session ran out."""
        if self._targets.pop(member, None) is not None:
            self.held = {partition: holder for partition, holder in self.held.items() if holder != member}
            self._rebalance()

    def has(self, member: str) -> bool:
        return member in self._targets

    def target(self, member: str) -> frozenset[int]:
        return self._targets[member]

    def release(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self.held.pop(partition, None)
        self.generation += 1  # the second round of a cooperative rebalance

    def take(self, member: str) -> frozenset[int]:
        """What ``member`` may own now: its target, less what others still hold."""
        free = {partition for partition in self._targets[member] if self.held.get(partition, member) == member}
        self.held.update(dict.fromkeys(free, member))
        return frozenset(free)

    def proof(self, member: str) -> bytes:
        return b"MEMORY:" + self.generation.to_bytes(4, "little", signed=True) + member.encode()

    def knows(self, proof: bytes) -> bool:
        return generation(proof) == self.generation and self.has(proof[11:].decode())

    def _rebalance(self) -> None:
        """As even as possible, moving as little as possible, the same for the same history."""
        self.generation += 1
        members = list(self._targets)
        if not members:
            return
        least, more = divmod(self._partitions, len(members))
        kept = {member: sorted(p for p, holder in self.held.items() if holder == member) for member in members}
        by_load = sorted(members, key=lambda member: -len(kept[member]))
        quota = {member: least + (rank < more) for rank, member in enumerate(by_load)}
        targets = {member: kept[member][: quota[member]] for member in members}
        homeless = iter(sorted(set(range(self._partitions)) - {p for target in targets.values() for p in target}))
        for member in members:
            while len(targets[member]) < quota[member]:
                targets[member].append(next(homeless))
        self._targets = {member: frozenset(target) for member, target in targets.items()}


class MemoryMembership:
    """A `runfold.ports.Membership`. Nothing here waits: `poll` sees what the group decided and returns at once.

    ``group`` is that of a `MemoryBroker`. `expire` is the end of its session while nobody polled.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._name = group.new_name()
        self._revoked: Callable[[frozenset[int]], None] | None = None
        self.owned: frozenset[int] = frozenset()
        self.proof = b""

    def join(self, revoked: Callable[[frozenset[int]], None]) -> None:
        self._revoked = revoked
        self._group.join(self._name)

    def poll(self, timeout: float) -> None:
        if self._revoked is None:
            raise LogError("expected join() before poll()")
        if not self._group.has(self._name):
            self._forget()
            self._group.join(self._name)
        if gone := self.owned - self._group.target(self._name):
            self.owned -= gone
            self._let_go(gone)
            self._group.release(gone)
        self.owned |= self._group.take(self._name)  # what the group wants back since we looked is let go first, at the next poll
        self.proof = self._group.proof(self._name)

    def leave(self) -> None:
        if self._revoked is None:
            return
        gone, self.owned = self.owned, frozenset()
        if gone and self._group.has(self._name):
            self._let_go(gone)
        self._revoked = None
        self._forget()
        self._group.leave(self._name)

    def expire(self) -> None:
        self._group.leave(self._name)

    def _let_go(self, gone: frozenset[int]) -> None:
        try:
            if self._revoked is not None:
                self._revoked(gone)
        except Exception:
            _log.exception("partitions %s are let go, although letting go failed", sorted(gone))

    def _forget(self) -> None:
        self.owned, self.proof = frozenset(), b""
