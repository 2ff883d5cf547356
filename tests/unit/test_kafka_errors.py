"""What each error of a broker means for an appender, injected through librdkafka's own mock cluster.

The mock neither fences nor hides aborted records: it is good for error codes and nothing else here.
"""

import ctypes
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from runfold.config import Settings
from runfold.core.errors import Expelled, Fenced, LogUnavailable
from runfold.core.events import LeaseAcquired
from runfold.log.appending import Outgoing
from runfold.log.kafka.appender import TransactionalProducer
from runfold.log.kafka.failures import log_error
from runfold.log.wire import generation
from runfold.ports import Position

PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, OFFSET_COMMIT = 0, 22, 24, 25, 26, 28  # numbers of the Kafka protocol
RECORD = Outgoing(LeaseAcquired(partition=0, worker="w", build="b"), b"lease/0", b"value", b"LeaseAcquired", b"token:0")


class MockCluster:
    """One broker inside this process."""

    def __init__(self, library: ctypes.CDLL, topic: str) -> None:
        self._library = library
        problem = ctypes.create_string_buffer(512)
        self._client = library.rd_kafka_new(0, library.rd_kafka_conf_new(), problem, 512)
        assert self._client, problem.value
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, 1)
        library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 1, 1)
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def answer(self, request: int, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(codes), errors)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The very librdkafka that confluent_kafka uses."""
    (path,) = glob(str(Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs" / "librdkafka-*"))
    library, pointer = ctypes.CDLL(path), ctypes.c_void_p
    signatures = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_new": (pointer, [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, ctypes.c_int]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [pointer]),
        "rd_kafka_mock_topic_create": (ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
        "rd_kafka_mock_push_request_errors_array": (None, [pointer, ctypes.c_int16, ctypes.c_size_t, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture
def cluster(library: ctypes.CDLL) -> Iterator[MockCluster]:
    cluster = MockCluster(library, "runs")
    yield cluster
    cluster.close()


@pytest.fixture
def producer(cluster: MockCluster) -> Iterator[TransactionalProducer]:
    producer = TransactionalProducer(Settings(bootstrap=cluster.bootstrap, topic="runs"), 0)
    yield producer
    producer.drop()


@pytest.fixture(scope="module")
def proof() -> bytes:
    """Of a member that would be in generation 7; the mock does not look at it, the client does."""
    consumer = Consumer({"group.id": "group"})
    unjoined: bytes = consumer.consumer_group_metadata()
    consumer.close()
    assert generation(unjoined) == -1
    return unjoined[:7] + (7).to_bytes(4, "little") + unjoined[11:]


@pytest.fixture
def commit(producer: TransactionalProducer, proof: bytes) -> Callable[[], None]:
    return lambda: producer.commit([RECORD], Position(next=5, low=3), proof)


@pytest.mark.parametrize("request_", [OFFSET_COMMIT, END, PRODUCE, ADD_PARTITIONS, ADD_OFFSETS])
@pytest.mark.parametrize("code", [KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED])
def test_a_fence_is_a_fence_whichever_request_meets_it(
    cluster: MockCluster, producer: TransactionalProducer, commit: Callable[[], None], request_: int, code: int
) -> None:
    producer.fence(lambda: False)
    cluster.answer(request_, code)
    with pytest.raises(Fenced):
        commit()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
    ],
)
def test_what_the_group_refuses_is_an_expulsion_that_names_the_refused_proof(
    cluster: MockCluster, producer: TransactionalProducer, commit: Callable[[], None], proof: bytes, code: int
) -> None:
    producer.fence(lambda: False)
    cluster.answer(OFFSET_COMMIT, code)
    with pytest.raises(Expelled) as expelled:
        commit()
    assert expelled.value.proof == proof


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PRODUCE, KafkaError.UNKNOWN_PRODUCER_ID),
        (PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE),
        (END, KafkaError.TRANSACTION_ABORTABLE),
        (OFFSET_COMMIT, KafkaError.OFFSET_METADATA_TOO_LARGE),
        (ADD_PARTITIONS, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_whatever_else_goes_wrong_is_an_unknown_outcome(
    cluster: MockCluster, producer: TransactionalProducer, commit: Callable[[], None], request_: int, code: int
) -> None:
    producer.fence(lambda: False)
    cluster.answer(request_, code)
    with pytest.raises(LogUnavailable) as unavailable:
        commit()
    assert not isinstance(unavailable.value, Fenced | Expelled)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (END, KafkaError.CONCURRENT_TRANSACTIONS),
        (ADD_OFFSETS, KafkaError.CONCURRENT_TRANSACTIONS),
        (END, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (PRODUCE, KafkaError.NOT_LEADER_FOR_PARTITION),
    ],
)
def test_what_passes_by_itself_is_no_error(
    cluster: MockCluster, producer: TransactionalProducer, commit: Callable[[], None], request_: int, code: int
) -> None:
    producer.fence(lambda: False)
    cluster.answer(request_, code)
    commit()


@pytest.mark.parametrize("code", [KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_fence_waits_for_what_passes_by_itself(
    cluster: MockCluster, producer: TransactionalProducer, commit: Callable[[], None], code: int
) -> None:
    cluster.answer(INIT, code, code, code)
    producer.fence(lambda: False)
    commit()


def test_a_fence_that_is_not_allowed_says_so(cluster: MockCluster, producer: TransactionalProducer) -> None:
    cluster.answer(INIT, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as refused:
        producer.fence(lambda: False)
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in str(log_error(refused.value, "partition 0"))


def test_an_error_that_the_binding_hid_in_a_system_error_is_found() -> None:
    hidden = KafkaException(KafkaError(KafkaError._FENCED))
    error = SystemError("returned a result with an exception set")
    error.__cause__ = hidden
    assert isinstance(log_error(error, "partition 0"), Fenced)
    assert isinstance(log_error(SystemError("anything"), "partition 0"), LogUnavailable)
