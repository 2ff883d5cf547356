"""A record as it stands in the log: key, value, headers; and the one rule for what is readable.

Every log and every consumer goes by this module, so that all skip exactly the same offsets.

- The key of a run's record is its run id; that of `LeaseAcquired` is ``lease/<partition>``.
- Header ``runfold-type`` names the record type. Header ``runfold-lane`` is only on owner records: ``<token>:<n>``, the
  appender that wrote it and a number that it uses once (see `echo`).
- Group metadata (a *proof*) holds the generation in bytes 7 to 11, little endian, signed; below 0 means not joined.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runfold.core.errors import DecodeError, TooLarge
from runfold.core.events import (
    Command,
    Delivery,
    Event,
    LeaseAcquired,
    OwnerEvent,
    Problem,
    Record,
    RunCancelRequested,
    RunResumeRequested,
    Unreadable,
)
from runfold.core.run_ids import PATTERN
from runfold.log.codec import Codec
from runfold.log.partitioner import partition_of

LANE_HEADER = "runfold-lane"
TRANSACTION_BYTES = 2_000_000  # of one append: a single batch, which is all or nothing also after a broker crash
LONGEST_ID = 200  # characters of a command's id: it comes back in the owner's own events
LONGEST_DETAIL = 1000  # characters: it goes along with what cannot be read, which may be anything
OVERHEAD_BYTES = 200  # of one record beside its key and value, at most

_RUN_ID = re.compile(PATTERN.encode()).fullmatch


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it was read, before anybody knows what it is."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    type_header: bytes | None = None
    from_owner: bool = False  # it has a `LANE_HEADER`


def key_of(event: Event) -> bytes:
    """The Kafka key that ``event`` must have."""
    return f"lease/{event.partition}".encode() if isinstance(event, LeaseAcquired) else event.run_id.encode()


def is_run_key(key: bytes) -> bool:
    """Whether ``key`` is a UUID in its canonical spelling."""
    return _RUN_ID(key) is not None


def generation(proof: bytes) -> int:
    """The group generation that a proof speaks of; negative when its member has not joined."""
    return int.from_bytes(proof[7:11], "little", signed=True) if len(proof) >= 11 else -1


def read(raw: RawRecord, codec: Codec, partitions: int) -> Delivery:
    """``raw`` as a record, or as one that cannot be applied; the reader goes on after either.

    Raises `LogUnavailable` where the codec needs its registry and cannot reach it: then nothing is known, ask again.
    """
    try:
        return Record(_valid(raw, codec, partitions), raw.partition, raw.offset, raw.timestamp)
    except DecodeError as error:
        place, what = (raw.partition, raw.offset, raw.timestamp), (raw.key, raw.value)
        return Unreadable(*place, *what, error.problem, error.detail[:LONGEST_DETAIL], raw.type_header, raw.from_owner)


def _valid(raw: RawRecord, codec: Codec, partitions: int) -> Event:
    if raw.value is None:
        raise DecodeError(Problem.NULL_VALUE, "the value is null: the log is never compacted, so this deletes nothing")
    if raw.key is None:
        raise DecodeError(Problem.NO_KEY, "the key is missing: it must be the run id")
    try:
        event = codec.decode(raw.value, raw.type_header)
    except DecodeError as error:
        if error.problem is Problem.UNKNOWN_SCHEMA and is_run_key(raw.key):  # else it might be a newer version's lease
            _check_home(partition_of(raw.key, partitions), raw.key, raw.partition)
        raise
    _check_key(event, raw.key)
    home = event.partition if isinstance(event, LeaseAcquired) else partition_of(raw.key, partitions)
    _check_home(home, raw.key, raw.partition)
    if isinstance(event, RunCancelRequested | RunResumeRequested) and not 1 <= len(event.command_id) <= LONGEST_ID:
        raise DecodeError(Problem.MALFORMED, f"command_id must have 1 to {LONGEST_ID} characters, got {len(event.command_id)}")
    return event


def _check_key(event: Event, key: bytes) -> None:
    expected = key_of(event)
    if key != expected:
        raise DecodeError(Problem.WRONG_KEY, f"expected the key {expected!r} of its {type(event).__name__}, got {key[:80]!r}")
    if not isinstance(event, LeaseAcquired) and not is_run_key(key):
        raise DecodeError(Problem.WRONG_KEY, f"expected a canonical lower-case UUID as run id, got {key[:80]!r}")


def _check_home(home: int, key: bytes, partition: int) -> None:
    if home != partition:
        raise DecodeError(Problem.MISROUTED, f"{key!r} belongs to partition {home} (murmur2), this is {partition}")


def encoded(events: Sequence[OwnerEvent], codec: Codec) -> list[tuple[bytes, bytes]]:
    """(key, value) of each. Raises `TooLarge` when they do not fit into one append, `ValueError` when one breaks its schema."""
    pairs = [(key_of(event), codec.encode(event)) for event in events]
    size = sum(len(key) + len(value) + OVERHEAD_BYTES for key, value in pairs)
    if size > TRANSACTION_BYTES:
        raise TooLarge(f"expected at most {TRANSACTION_BYTES} bytes in one append, got {size} ({len(pairs)} events); split them")
    return pairs


def command_key(command: Command) -> bytes:
    """The key of a command that is about to be written. Raises `ValueError` for a run id that no reader would accept."""
    if not is_run_key(key := key_of(command)):
        raise ValueError(f"expected a canonical lower-case UUID as run id, got {command.run_id[:80]!r}")
    return key
