"""The log in one process's memory, with the contract of the Kafka one: for tests, and for people who try things out.

A `MemoryBroker` is shared by any number of clients in one event loop. It models what Kafka does that matters: an epoch per
partition that fences, group members and generations, transactions whose records are in the log but not visible and hold back
what comes after them, markers that take offsets, commits whose outcome the client never learns. No threads; the only delays are
asyncio's, so that under a loop with virtual time the same calls give the same history.
"""

from runfold.log.memory.broker import MemoryBroker
from runfold.log.memory.group import MemoryMembership
from runfold.log.memory.live import MemoryLive, MemoryLiveReader
from runfold.log.memory.log import MemoryLog
from runfold.log.memory.outside import MemoryCommands, MemoryTail

__all__ = [
    "MemoryBroker",
    "MemoryCommands",
    "MemoryLive",
    "MemoryLiveReader",
    "MemoryLog",
    "MemoryMembership",
    "MemoryTail",
]
