"""Idempotency-Key: a request sent again starts nothing again.

The key makes the run id, and the run's first RunRequested carries a digest of its body: so the log itself, in which the first
record wins, remembers what was asked under a key, for as long as it remembers the run. Nothing else is stored.

Requests with one key inside this process share one attempt. Against other processes the outcome is read back: whose RunRequested
came first is known only from the log.
"""

import asyncio
import re
import uuid
from dataclasses import dataclass

from runfold.api.patience import taken
from runfold.api.problems import Problem, unavailable
from runfold.api.reads import Reads
from runfold.api.submission import Submission
from runfold.core.errors import LogError, ReadUnavailable
from runfold.core.events import RunRequested, Status
from runfold.ports import Commands

HEADER = "Idempotency-Key"
LONGEST_KEY = 255

_NAMESPACE = uuid.UUID("d7a3b6a2-5c0e-5a0b-9c4e-3f1f2b8f6a10")  # fixed for ever: another one would forget every key
_KEY = re.compile(r"[\x21-\x7e]+").fullmatch


def run_id_of(tenant: str | None, key: str) -> str:
    """The run that ``key`` stands for. Keys of different tenants never meet."""
    return str(uuid.uuid5(_NAMESPACE, f"{tenant or ''}\n{key}"))


def check_key(keys: list[str]) -> str | None:
    """The key in the request's ``keys`` headers, if there is one. Raises `Problem` (422)."""
    if not keys:
        return None
    if len(keys) > 1 or len(keys[0]) > LONGEST_KEY or not _KEY(keys[0]):
        message = f"expected one {HEADER} header of 1 to {LONGEST_KEY} visible ASCII characters"
        raise Problem(422, "invalid_request", message, field=HEADER)
    return keys[0]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run that the log holds: what the requester learns of it."""

    id: str
    status: Status = Status.QUEUED
    replayed: bool = False  # it was there before this request


@dataclass(frozen=True, slots=True)
class _Established:
    digest: str | None
    status: Status
    found: bool


class Submissions:
    """Turns submissions into runs."""

    def __init__(self, commands: Commands, reads: Reads) -> None:
        self._commands, self._reads = commands, reads
        self._under_way: dict[str, asyncio.Task[_Established]] = {}

    async def submit(self, submission: Submission, key: str | None) -> Accepted:
        """Ask for the run. Raises `Problem` (422) when ``key`` was used for another request, (503) when the log does not answer,
        `ReadUnavailable` when a key cannot be looked up."""
        if key is None:
            return await self._start(submission)
        return await self._start_once(submission.command(run_id_of(submission.tenant, key), submission.digest))

    async def _start(self, submission: Submission) -> Accepted:
        command = submission.command(str(uuid.uuid4()))
        await self._send(command)
        return Accepted(command.run_id)

    async def _start_once(self, command: RunRequested) -> Accepted:
        task = self._under_way.get(command.run_id)
        shared = task is not None
        if task is None:
            task = self._begin(command)
        established = await asyncio.shield(task)
        if established.digest != command.request_digest:
            message = "this key was used for another request: send that one again, or take a new key"
            raise Problem(422, "idempotency_key_reused", message, field=HEADER, runId=command.run_id)
        return Accepted(command.run_id, established.status, shared or established.found)

    def _begin(self, command: RunRequested) -> asyncio.Task[_Established]:
        task = asyncio.create_task(self._establish(command))
        self._under_way[command.run_id] = task
        task.add_done_callback(lambda _: self._under_way.pop(command.run_id))
        return task

    async def _establish(self, command: RunRequested) -> _Established:
        if (known := await self._known(command.run_id, found=True)) is not None:
            return known
        await self._send(command)
        try:
            known = await self._known(command.run_id, found=False)
        except (LogError, ReadUnavailable):
            known = None  # it is in the log; only whether another process was faster is not known
        return known or _Established(command.request_digest, Status.QUEUED, found=False)

    async def _known(self, run_id: str, *, found: bool) -> _Established | None:
        row = await self._reads.run(run_id)
        return None if row is None else _Established(row["request_digest"], Status(row["status"]), found)

    async def _send(self, command: RunRequested) -> None:
        try:
            await taken(self._commands.send(command))
        except LogError as error:
            message = "the log does not answer: whether the run was accepted is not known. Look at it by its runId, or try again"
            raise unavailable("log_unavailable", message, runId=command.run_id) from error
