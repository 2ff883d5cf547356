"""The keeper's seat in the consumer group: a consumer that is assigned partitions and never reads one."""

import logging
from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from runfold.config import Settings
from runfold.core.errors import ConfigError, LogError
from runfold.log.kafka import client
from runfold.log.wire import generation

_log = logging.getLogger("runfold.kafka")


class KafkaMembership:
    """A `runfold.ports.Membership`. After `leave` it can `join` again, as a new member.

    ``revoked`` may use `proof` and `owned`, not `poll`. A revocation that blocks stops nothing else of this process, only the
    new owner waits for it; heartbeats go on by themselves. But not inside `leave`: librdkafka sends none once it is closing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None
        self._revoked: Callable[[frozenset[int]], None] = lambda partitions: None
        self.owned: frozenset[int] = frozenset()

    @property
    def proof(self) -> bytes:
        if self._consumer is None:
            return b""
        proof: bytes = self._consumer.consumer_group_metadata()
        return proof if generation(proof) >= 0 else b""

    def join(self, revoked: Callable[[frozenset[int]], None]) -> None:
        if self._consumer is not None:
            raise LogError("this member has joined already: leave() first")
        self._revoked = revoked
        self._consumer = client.make(Consumer, client.member(self._settings))
        self._consumer.subscribe(
            [self._settings.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def poll(self, timeout: float) -> None:
        if self._consumer is None:
            raise LogError("expected join() before poll()")
        try:
            message = self._consumer.poll(timeout)
        except KafkaException as refused:
            raise LogError(f"the seat in group {self._settings.group} is lost: {refused}; end this process") from refused
        if message is None or (error := message.error()) is None:
            return
        if error.code() == KafkaError._FATAL or error.fatal():  # _FATAL comes with fatal() False
            raise LogError(f"the seat in group {self._settings.group} is lost for good: {error}; end this process")
        if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:  # the client would ask again for ever
            raise ConfigError(
                f"the broker refuses RUNFOLD_SESSION_TIMEOUT_MS: expected something between its group.min.session.timeout.ms and "
                f"group.max.session.timeout.ms, got {self._settings.session_timeout_ms}; change this one or those"
            )
        client.log_trouble(error)

    def leave(self) -> None:
        if self._consumer is None:
            return
        try:
            self._consumer.close()  # revokes first: until then the worker still needs our proof
        finally:
            self._consumer, self.owned = None, frozenset()

    # ---- called inside poll and close, on the same thread; no exception may leave them

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions])
        consumer.pause(partitions)
        self.owned |= _numbers(partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = _numbers(partitions)
        self.owned -= gone
        try:
            self._revoked(gone)
        except Exception:
            _log.exception("partitions %s are let go, although letting go failed", sorted(gone))

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= _numbers(partitions)  # there is nothing to wait for: somebody else may own them already


def _numbers(partitions: list[TopicPartition]) -> frozenset[int]:
    return frozenset(partition.partition for partition in partitions)
