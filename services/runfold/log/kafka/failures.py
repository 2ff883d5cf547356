"""What an error of the Kafka client means for an appender.

By code, not by flag: the same fence arrives as fatal, as abortable or as retriable, depending on the request that met it.
Whatever is in neither table may have happened or not: `LogUnavailable`.
"""

from confluent_kafka import KafkaError, KafkaException

from runfold.core.errors import Expelled, Fenced, LogError, LogUnavailable

FENCED = frozenset({
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_TXN_STATE,  # also: the broker timed our transaction out
    KafkaError.INVALID_PRODUCER_ID_MAPPING,  # the transactional id was idle for a week
    KafkaError.PRODUCER_FENCED,
})  # fmt: skip
EXPELLED = frozenset({
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.REBALANCE_IN_PROGRESS,
})  # fmt: skip


def log_error(error: BaseException, where: str, proof: bytes = b"") -> LogError:
    """``error`` as one of ours. It keeps no reference to ``error``: a traceback would keep the client alive."""
    cause = kafka_error(error)
    if cause is None:
        return LogUnavailable(f"{where}: {type(error).__name__}: {error}")
    if cause.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        advice = "it is longer than the broker's transaction.max.timeout.ms; lower the one or raise the other"
        return LogUnavailable(f"{where}: the broker refuses RUNFOLD_TRANSACTION_TIMEOUT_MS: {advice}")
    text = f"{where}: {cause.name()} ({cause.str()})"
    if cause.code() in FENCED:
        return Fenced(f"{text}: a newer owner exists; make sure that the partition is still ours, then fence again")
    if cause.code() in EXPELLED:
        return Expelled(f"{text}: the group refuses this proof; fence again with another one", proof)
    return LogUnavailable(f"{text}: outcome unknown; fence again")


def kafka_error(error: BaseException | None) -> KafkaError | None:
    """The Kafka error inside ``error``; the binding wraps some in a SystemError."""
    while error is not None:
        if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
            return error.args[0]
        error = error.__cause__ or error.__context__
    return None
