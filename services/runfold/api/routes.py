"""The runs resource: HTTP on the one side, commands and reads on the other; nothing is decided here."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AfterValidator

from runfold.api import strict_json
from runfold.api.cancelling import Cancellation, cancel
from runfold.api.closed import Closed
from runfold.api.idempotency import HEADER, LONGEST_KEY, Submissions, check_key
from runfold.api.pages import Filters, check_repeated, cursor_after, position
from runfold.api.patience import in_time
from runfold.api.problems import Problem
from runfold.api.reads import Reads
from runfold.api.refusals import unknown
from runfold.api.resuming import Resumption, resume
from runfold.api.run_ids import PATTERN, canonical
from runfold.api.submission import Submission
from runfold.api.views import ErrorBody, RunPage, RunStatus, RunSummary, RunView, StepView
from runfold.core.errors import ReadUnavailable
from runfold.ports import Commands, ReadModel

EXAMPLE = {"input": "Which acme tickets are overdue?", "tokenBudget": 50000, "timeoutSeconds": 300}

RunId = Annotated[
    str,
    Path(
        alias="id",
        json_schema_extra={"pattern": f"^{PATTERN}$"},
        description="The run: a UUID in its canonical lower-case spelling; any other spelling is refused.",
        examples=["6f1c0a52-7a3e-4a53-9b0c-0d5f3a1e2b4c"],
    ),
    AfterValidator(canonical),
]


@dataclass(frozen=True)
class Service:
    """What the routes work with; ``app.state.service``."""

    commands: Commands
    projection: ReadModel
    reads: Reads
    submissions: Submissions


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _json(request: Request) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        message = "expected the header Content-Type: application/json"  # what a web page cannot send to us without being asked
        raise Problem(415, "unsupported_media_type", message)
    return strict_json.parse(await request.body())


async def _json_or_nothing(request: Request) -> Any:
    return await _json(request) if await request.body() else {}


async def _submission(request: Request) -> Submission:
    return Submission.read(await _json(request))


async def _cancellation(request: Request) -> Cancellation:
    return Cancellation.read(await _json_or_nothing(request))


async def _resumption(request: Request) -> Resumption:
    return Resumption.read(await _json_or_nothing(request))


def _key(request: Request) -> str | None:
    return check_key(request.headers.getlist(HEADER))


def _errors(**described: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's words for error answers: ``_404="…"``."""
    return {int(status[1:]): {"model": ErrorBody, "description": text} for status, text in described.items()}


_UNAVAILABLE = "What is needed to answer does not answer itself: try again after Retry-After seconds."
_READING = _errors(
    _404="There is no such run.",
    _422="The id is not a UUID in its canonical spelling.",
    _503=_UNAVAILABLE,
)
_REFUSING = _errors(
    _408="The body did not come in time.",
    _413="The body is larger than the server takes.",
    _415="The body is not declared as JSON.",
    _422="The id or the body is not what is documented.",
)


def _body(of: type[Closed], example: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """OpenAPI's words for a request's body."""
    return {"required": required, "content": {"application/json": {"schema": of.model_json_schema(), "example": example}}}


_KEY_PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Sent again with the same key and body, the request answers with the same run and starts nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
}

router = APIRouter(prefix="/api/runs", tags=["runs"])
Given = Annotated[Service, Depends(_service)]


@router.post(
    "",
    status_code=202,
    summary="Ask for a run",
    openapi_extra={"requestBody": _body(Submission, EXAMPLE, required=True), "parameters": [_KEY_PARAMETER]},
    responses=_REFUSING
    | _errors(
        _422="The body or the key is not what is documented, or the key was used for another request. Nothing was started.",
        _503="The log does not answer; with an Idempotency-Key also: the projection does not. See `runId`.",
    ),
)
async def submit(
    body: Annotated[Submission, Depends(_submission)], key: Annotated[str | None, Depends(_key)], given: Given, response: Response
) -> RunStatus:
    """Accepted as soon as the log has it. A read that follows finds the run."""
    accepted = await given.submissions.submit(body, key)
    response.headers["Location"] = f"/api/runs/{accepted.id}"
    if accepted.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return RunStatus(id=accepted.id, status=accepted.status)


@router.get("", summary="List runs", responses=_errors(_422="A filter is unknown or has an impossible value.", _503=_UNAVAILABLE))
async def list_runs(request: Request, filters: Annotated[Filters, Query()], given: Given) -> RunPage:
    """Newest first, a page at a time. Lists what is projected: a run that was just accepted may appear a moment later."""
    check_repeated(name for name, _ in request.query_params.multi_items())
    rows = await in_time(
        given.projection.runs(
            limit=filters.limit + 1,
            before=position(filters.cursor) if filters.cursor else None,
            status=filters.status,
            agent=filters.agent,
            tenant=filters.tenant,
        ),
        ReadUnavailable,
    )
    page = rows[: filters.limit]
    more = len(rows) > filters.limit
    return RunPage(runs=[RunSummary.model_validate(row) for row in page], next_cursor=cursor_after(page[-1]) if more else None)


@router.get("/{id}", summary="Get a run", responses=_READING)
async def get_run(run_id: RunId, given: Given) -> RunView:
    """Where the run stands: at least as new as the projection, and never unknown once accepted."""
    row = await given.reads.run(run_id)
    if row is None:
        raise unknown(run_id)
    return RunView.model_validate(row)


@router.get("/{id}/timeline", summary="Get a run's steps", responses=_READING)
async def get_timeline(run_id: RunId, given: Given) -> list[StepView]:
    """The steps by seq, as far as they are projected: empty for a run that was just accepted."""
    steps = await given.reads.timeline(run_id)
    if steps is None:
        raise unknown(run_id)
    return [StepView.model_validate(row) for row in steps]


@router.post(
    "/{id}/cancel",
    status_code=202,
    summary="Cancel a run",
    openapi_extra={"requestBody": _body(Cancellation, {"detail": "asked for by mistake"})},
    responses={
        200: {"model": RunStatus, "description": "The run is cancelled already."},
        **_READING,
        **_REFUSING,
        **_errors(_409="The run has ended in another way: `status` says how; or nobody can carry it. Nothing was changed."),
    },
)
async def cancel_run(
    run_id: RunId, said: Annotated[Cancellation, Depends(_cancellation)], given: Given, response: Response
) -> RunStatus:
    """Asks the run's owner to end it. `status` is what it was when asked."""
    status, sent = await cancel(run_id, said, given.commands, given.reads)
    if not sent:
        response.status_code = 200
    return RunStatus(id=run_id, status=status)


@router.post(
    "/{id}/resume",
    status_code=202,
    summary="Resume a suspended run",
    openapi_extra={"requestBody": _body(Resumption, {"tokenBudget": 100000, "detail": "allowed by the owner of the account"})},
    responses={
        **_READING,
        **_REFUSING,
        **_errors(_409="The run waits for nobody: `status` says where it stands; or nobody can carry it. Nothing was changed."),
    },
)
async def resume_run(run_id: RunId, on: Annotated[Resumption, Depends(_resumption)], given: Given) -> RunStatus:
    """Asks the run's owner to go on with it, on the limits given. `status` is what it was when asked."""
    return RunStatus(id=run_id, status=await resume(run_id, on, given.commands, given.reads))
