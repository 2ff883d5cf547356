"""Which partition a run lives on: Kafka's own default for keyed records (murmur2), as Java, Go and most other clients have it.

librdkafka's default is another one, so a client in its family must ask for ``partitioner=murmur2_random``.
"""

from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with ``key`` on a topic of ``partitions`` partitions."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _WORD
        k = (k ^ k >> 24) * _M & _WORD
        h = (h * _M & _WORD) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _WORD
    h = (h ^ h >> 13) * _M & _WORD
    return h ^ h >> 15
