"""What those who watch the process ask: is it alive, can it serve, what has it counted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from runfold.api.freshness import lag_of
from runfold.api.patience import begun
from runfold.api.problems import Problem
from runfold.core.errors import ReadUnavailable, RunfoldError
from runfold.ports import ReadModel, Tail

PROBE_SECONDS = 0.8  # whoever probes has a second
OK, REFUSED, SILENT = "ok", "unavailable", "no answer"

_ANY_RUN = "00000000-0000-0000-0000-000000000000"
_BEYOND_THE_END = 2**62  # an offset: the log has to say where it ends and has nothing to send

Probe = Callable[[], Awaitable[object]]


def probes_of(projection: ReadModel, tail: Tail, behind_seconds: float) -> dict[str, Probe]:
    """Questions that the projection and the log can only answer when they are there, and when the one has applied what the other
    held ``behind_seconds`` ago."""

    async def fresh() -> None:
        if (lag := await lag_of(projection, tail)) > behind_seconds:
            raise ReadUnavailable(f"the tables are {lag:.0f} s behind the log, at most {behind_seconds:.0f} s are good")

    return {
        "projection": lambda: projection.applied(0),
        "log": lambda: tail.records(_ANY_RUN, _BEYOND_THE_END),
        "freshness": fresh,
    }


class Question:
    """One that is asked at each probe, but not while it hangs: then its last asking is waited for, so that none pile up."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._asking: asyncio.Future[str] | None = None

    async def answer(self) -> str:
        """`OK`; `REFUSED` when the probe raised a `RunfoldError` or `TimeoutError`; `SILENT` after `PROBE_SECONDS`.

        Whatever else the probe raises passes through to all who wait for this asking: it is a fault of ours, and no answer."""
        if self._asking is None or self._asking.done():
            self._asking = begun(self._ask())
        asking = self._asking
        await asyncio.wait({asking}, timeout=PROBE_SECONDS)
        return asking.result() if asking.done() else SILENT

    async def _ask(self) -> str:
        try:
            await self._probe()
        except (RunfoldError, TimeoutError):
            return REFUSED
        return OK


def routes(probes: Mapping[str, Probe], registry: CollectorRegistry, refresh: Probe) -> APIRouter:
    """``/healthz``, ``/readyz`` and ``/metrics``, before which ``refresh`` brings ``registry`` up to date, in a bounded time."""
    router = APIRouter(tags=["operations"], include_in_schema=False)
    questions = {name: Question(probe) for name, probe in probes.items()}

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> dict[str, object]:
        answers = await asyncio.gather(*(question.answer() for question in questions.values()))
        checks = dict(zip(questions, answers, strict=True))
        if any(answer != OK for answer in answers):
            raise Problem(503, "not_ready", "a part that requests need does not answer", checks=checks)
        return {"status": "ready", "checks": checks}

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        await refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return router
