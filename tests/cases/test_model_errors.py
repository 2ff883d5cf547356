"""A: what the API's errors, silences and half answers do to a run (cases A01, A02, A04, A05, A07)."""

import asyncio
import logging
import time
from itertools import cycle, pairwise
from typing import Any

import pytest

from runfold.agents import Agent
from runfold.core.events import ModelStepCompleted, ModelStepFailed, ModelStepStarted, Reason, Status
from runfold.model import Backoff, BreakerPolicy, Breakers, RetryPolicy
from runfold.testing import Script, sse
from tests.cases.engine_process import BACKOFF, same_for_all
from tests.cases.engine_scene import MODEL, recording, stage
from tests.cases.harness_processes import slowness

# ---- A01

REFUSALS = {
    400: (Status.FAILED, Reason.MODEL_REQUEST),
    413: (Status.FAILED, Reason.MODEL_REQUEST),
    422: (Status.FAILED, Reason.MODEL_REQUEST),
    401: (Status.SUSPENDED, Reason.MODEL_ACCESS),
    403: (Status.SUSPENDED, Reason.MODEL_ACCESS),
    404: (Status.SUSPENDED, Reason.MODEL_ACCESS),
}


@pytest.mark.parametrize("http_status", REFUSALS)
async def test_a01_v1_an_error_that_no_repetition_cures_is_not_repeated(http_status: int) -> None:
    message = "key sk-ant-api03-SECRET is wrong " + "x" * 2000
    async with stage(Script().then_fail(http_status, message).for_ever()) as scene:
        began = time.monotonic()
        run = await scene.play()
        (failure,) = scene.log(run.id, ModelStepFailed)
        assert scene.api.hits() == 1, "A01.1"
        assert time.monotonic() - began < 3 * slowness(), "A01.2"
        assert (run.status, run.reason) == REFUSALS[http_status], "A01.2"
        assert failure.http_status == http_status, "A01.2"
        assert failure.error_type, "A01.2"
        assert "SECRET" not in failure.message + run.detail, "A01.2"
        assert 0 < len(failure.message) <= 500, "A01.2"


async def test_a01_v2_not_even_when_the_server_says_so() -> None:
    async with stage(Script().then_fail(400, headers={"x-should-retry": "true"}).for_ever()) as scene:
        run = await scene.play()
        assert (scene.api.hits(), run.status) == (1, Status.FAILED), "A01.1"


async def test_a01_v3_nor_by_the_next_worker() -> None:
    script = Script().then_tool_use("a", "act", {}).then_tool_use("b", "act", {}).then_fail(400).for_ever()
    async with stage({"go": script, "other": Script().then_text("done")}) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        assert (run.status, scene.api.hits()) == (Status.FAILED, 3)
        await scene.restart()
        assert (await scene.play("other")).status is Status.SUCCEEDED  # so it has read all there is
        assert scene.api.hits("go") == 3, "A01.3"
        assert [event.http_status for event in scene.log(run.id, ModelStepFailed)] == [400], "A01.3: the outcome is in the log"


# ---- A02

LASTING = {
    "V1": (Script().then_fail(500).for_ever(), Reason.API_ERROR),
    "V2": (Script().then_fail(529).for_ever(), Reason.OVERLOADED),
    "V3": (Script().then_reset().for_ever(), Reason.CONNECTION),
}


@pytest.mark.parametrize("variant", LASTING)
async def test_a02_there_is_one_layer_of_retries(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    script, reason = LASTING[variant]
    draws = cycle([0.9, 0.8, 0.7])
    caplog.set_level(logging.INFO, "runfold.step")
    async with stage(script) as scene:
        process = scene.start(draw=lambda: next(draws), retries=same_for_all(Backoff(attempts=3, base=0.1, cap=10)))
        run = await scene.play()
        assert scene.api.hits() == 3, "A02.1: not nine"
        assert [event.attempt for event in scene.log(run.id, ModelStepStarted)] == [1, 2, 3], "A02.1"
        assert [event.attempt for event in scene.log(run.id, ModelStepFailed)] == [1, 2, 3], "A02.1"
        assert sum("MODEL attempt" in line for line in caplog.messages) == 3, "A02.1: a log line each"
        count = process.sample("agent_step_latency_seconds_count", kind="model", outcome=reason.lower())
        assert count == 3, "A02.1: a metric sample each"
        first, second = [after.at - before.at for before, after in pairwise(scene.api.requests)]
        assert first >= 0.9 * 0.1, "A02.2: jitter of a back-off of 0.1 s"
        assert second >= 0.8 * 0.2, "A02.2: of one that doubled"
        assert first + second < 5 * slowness(), "A02.2: within the policy's bound, with room for a busy machine"
        assert (run.status, run.reason) == (Status.FAILED, reason), "A02.3"


# ---- A04

HALF = (sse.message_start(usage={"input_tokens": 900, "output_tokens": 1}), sse.text_start(), sse.text_delta("Hel"))


async def test_a04_v1_an_overload_in_the_middle_of_a_stream_is_retried_and_leaves_nothing() -> None:
    script = Script().then_sse(*HALF, sse.error_event("overloaded_error")).then_text("Hello, world", 10, 5)
    async with stage(script) as scene:
        run = await scene.play()
        assert (scene.api.hits(), run.status, run.output) == (2, Status.SUCCEEDED, "Hello, world"), "A04.1"
        assert "Hel" not in repr(scene.records()).replace("Hello, world", ""), "A04.1"
        (failure,) = scene.log(run.id, ModelStepFailed)
        assert failure.usage is not None, "A04.4"
        assert (failure.usage.input_tokens, failure.reason) == (900, Reason.OVERLOADED), "A04.4"
        assert (run.usage.input_tokens, run.usage.output_tokens) == (10, 5), "A04.4: never added to the step's own"


async def test_a04_v2_an_overload_before_the_first_delta_is_retried() -> None:
    script = Script().then_sse(sse.error_event("overloaded_error")).then_text("Hello")
    async with stage(script) as scene:
        run = await scene.play()
        assert (scene.api.hits(), run.status) == (2, Status.SUCCEEDED), "A04.1"
        assert [event.usage for event in scene.log(run.id, ModelStepFailed)] == [None], "A04.4"


async def test_a04_v3_an_invalid_request_in_a_stream_is_not_retried() -> None:
    async with stage(Script().then_sse(*HALF, sse.error_event("invalid_request_error")).for_ever()) as scene:
        run = await scene.play()
        assert (scene.api.hits(), run.status, run.reason) == (1, Status.FAILED, Reason.MODEL_REQUEST), "A04.2"


async def test_a04_v4_an_overload_for_ever_ends_by_policy() -> None:
    async with stage(Script().then_sse(*HALF, sse.error_event("overloaded_error")).for_ever()) as scene:
        run = await scene.play()
        assert scene.api.hits() == BACKOFF.attempts, "A04.3"
        assert (run.status, run.reason) == (Status.FAILED, Reason.OVERLOADED), "A04.3"
        assert (run.usage.total, run.wasted.input_tokens) == (0, 3 * 900), "A04.4"


# ---- overloads last minutes; a model that does nothing but fail is left alone

OVERLOADED = Script().then_fail(529)


async def test_an_overload_is_waited_for_longer_than_other_failures_also_across_a_restart() -> None:
    script = Script().then_fail(529).then_fail(500).then_fail(529).then_fail(529).then_fail(529).then_fail(500).then_text("done")
    async with stage(script, attempts=7) as scene:
        overloads, mishaps = (Backoff(attempts=attempts, base=0.01, cap=0.1) for attempts in (5, 3))
        patient = RetryPolicy(overloads=overloads, mishaps=mishaps)
        killed = scene.kill_at(lambda event: isinstance(event, ModelStepFailed) and event.attempt == 4, committed=True)
        scene.start(retries=patient)
        id_ = await scene.submit()
        await killed
        scene.start(retries=patient)
        run = await scene.settled(id_)
        assert (run.status, scene.api.hits()) == (Status.SUCCEEDED, 7), "four overloads of five, two others of three"


async def test_while_a_model_fails_runs_wait_and_use_up_no_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """One run opens the breaker; when its pause is over one call finds out that the model answers again, and all go on."""
    caplog.set_level(logging.INFO, "runfold.model.breaker")
    first = Script().then_fail(529).then_fail(529).then_fail(500).then_text("done")
    others = {f"other {n}": Script().then_text("done") for n in range(4)}
    held: list[tuple[str, bool]] = []
    async with stage({"first": first, **others}, attempts=4) as scene:
        breakers = Breakers(BreakerPolicy(failures=3, pause=0.5, cap=1.0), lambda model, yes: held.append((model, yes)))
        scene.start(breakers=breakers, retries=same_for_all(Backoff(attempts=4, base=0.001, cap=0.001)))
        ids = [await scene.submit("first")]
        await scene.logged(ModelStepFailed, ids[0], attempt=3)
        ids += [await scene.submit(text) for text in others]
        for id_ in ids:
            assert (await scene.settled(id_)).status is Status.SUCCEEDED
        third, fourth = (scene.api.requests[n].at for n in (2, 3))
        assert fourth - third >= 0.4, "nobody called while it was open"
        assert scene.api.hits() == 4 + 4
        assert [len(scene.log(id_, ModelStepStarted)) for id_ in ids] == [4, 1, 1, 1, 1], "no attempt was used up"
        assert held == [(MODEL, True), (MODEL, False)]
        assert sum("waits for model" in line for line in caplog.messages) >= 4, "a run says what it waits for"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_who_waits_for_a_model_can_still_be_cancelled_and_has_its_deadline(end: str) -> None:
    async with stage({"first": OVERLOADED.for_ever(), "go": Script().then_text("never")}) as scene:
        scene.start(breakers=Breakers(BreakerPolicy(failures=1, pause=600, cap=600)))
        first = await scene.submit("first")
        await scene.logged(ModelStepFailed, first)
        id_ = await scene.submit("go", timeout_ms=300 if end == "deadline" else None)
        if end == "cancel":
            await scene.until(id_, lambda run: run.started is not None)
            await scene.cancel(id_)
        run = await scene.settled(id_)
        assert run.status is (Status.CANCELLED if end == "cancel" else Status.TIMED_OUT)
        assert not scene.log(id_, ModelStepStarted), "no attempt is used up"
        assert scene.api.hits("go") == 0
        await scene.cancel(first)
        await scene.settled(first)


# ---- A05: in the case's profile the stream timeout is 3 s; here all its times are a tenth

STREAM_SECONDS = 0.3
CLOCKS: dict[str, Any] = {"first_byte": STREAM_SECONDS, "idle": STREAM_SECONDS}
HANGING = {
    "a: headers, then nothing": Script().then_sse("hang"),
    "b: only pings": Script().then_ping(every=0.05),
    "d: no answer": Script().then_hang(),
}


@pytest.mark.parametrize("variant", HANGING)
async def test_a05_a_stream_without_content_is_given_up(variant: str) -> None:
    async with stage(HANGING[variant].for_ever()) as scene:
        scene.start(**CLOCKS)
        run = await scene.play()
        failures = scene.log(run.id, ModelStepFailed)
        assert len(failures) == scene.api.hits() == BACKOFF.attempts, "A05.1: retried by policy"
        latest = STREAM_SECONDS * 1000 + 1500 * slowness()
        assert all(STREAM_SECONDS * 500 <= failure.latency_ms <= latest for failure in failures), "A05.1"
        assert (run.status, run.reason) == (Status.FAILED, Reason.MODEL_TIMEOUT), "A05.1"
        await scene.api.until(lambda: all(hit.aborted for hit in scene.api.requests))  # A05.1: the stub sees it closed


async def test_a05_a_slow_stream_with_content_is_left_alone() -> None:
    """A05.2: it takes four times the stream timeout as a whole."""
    words = [f"{n} " for n in range(40)]
    deltas = [part for word in words for part in (0.1, sse.text_delta(word))]
    end = [sse.block_stop(), sse.message_delta("end_turn"), sse.message_stop()]
    async with stage(Script().then_sse(sse.message_start(), sse.text_start(), *deltas, *end)) as scene:
        scene.start(first_byte=1.0, idle=1.0)
        run = await scene.play()
        assert (run.status, run.output) == (Status.SUCCEEDED, "".join(words)), "A05.2"
        assert scene.api.hits() == 1, "A05.2"


async def test_a05_v2_a_cancel_reaches_into_a_stream_that_hangs() -> None:
    async with stage(HANGING["a: headers, then nothing"]) as scene:
        scene.start()
        id_ = await scene.submit()
        await scene.api.until_hits(1)
        began = time.monotonic()
        await scene.cancel(id_)
        run = await scene.settled(id_)
        assert (run.status, run.reason) == (Status.CANCELLED, Reason.CANCEL), "A05.3"
        assert time.monotonic() - began < 3 * slowness(), "A05.3"


# ---- every way in which a stream goes wrong is an error of its own

BEGUN = (sse.message_start(), sse.text_start(), sse.text_delta("Hel"))
PAGE = "<!doctype html><p>Sign in to the network</p>"
BROKEN: dict[str, tuple[Script, Reason, str, bool]] = {  # reason, error type, whether it is tried again
    "a clean end": (Script().then_sse(*BEGUN), Reason.CONNECTION, "incomplete_stream", True),
    "an end behind the last delta": (
        Script().then_sse(*BEGUN, sse.block_stop(), sse.message_delta("end_turn")),
        Reason.CONNECTION,
        "incomplete_stream",
        True,
    ),
    "a reset": (Script().then_sse(*BEGUN, "reset"), Reason.CONNECTION, "broken_stream", True),
    "a reset before an answer": (Script().then_reset(), Reason.CONNECTION, "not_connected", True),
    "an error event": (
        Script().then_sse(*BEGUN, sse.error_event("overloaded_error")),
        Reason.OVERLOADED,
        "overloaded_error",
        True,
    ),
    "only pings": (Script().then_ping(every=0.05), Reason.MODEL_TIMEOUT, "no_content", True),
    "nothing at all": (Script().then_sse("hang"), Reason.MODEL_TIMEOUT, "no_first_byte", True),
    "a page": (Script().then_fail(200, body=PAGE, headers={"content-type": "text/html"}), Reason.API_ERROR, "not_a_stream", True),
    "rubbish": (Script().then_fail(200, body="data: {]\n\n"), Reason.API_ERROR, "malformed_stream", True),
    "a delta without a block": (
        Script().then_sse(sse.message_start(), sse.text_delta("Hel")),
        Reason.API_ERROR,
        "malformed_stream",
        True,
    ),
    "an unknown delta": (
        Script().then_sse(*BEGUN[:2], sse.delta(0, "hologram_delta"), "hang"),
        Reason.UNSUPPORTED_RESPONSE,
        "unknown_content",
        False,
    ),
}


@pytest.mark.parametrize("variant", BROKEN)
async def test_each_way_in_which_a_stream_breaks_is_told_apart(variant: str) -> None:
    script, reason, error_type, again = BROKEN[variant]
    async with stage(script.for_ever()) as scene:
        scene.start(**CLOCKS if reason is Reason.MODEL_TIMEOUT else {})
        run = await scene.play()
        failures = scene.log(run.id, ModelStepFailed)
        assert {(failure.reason, failure.error_type) for failure in failures} == {(reason, error_type)}
        assert len(failures) == scene.api.hits() == (BACKOFF.attempts if again else 1)
        assert (run.status, run.reason, run.output) == (Status.FAILED, reason, "")


async def test_a_conversation_that_the_api_says_is_another_one_waits_for_a_person() -> None:
    message = "Invalid `signature` in `thinking` block. The block is bound to a different conversation"
    async with stage(Script().then_fail(400, message).for_ever()) as scene:
        run = await scene.play()
        assert (run.status, run.reason, scene.api.hits()) == (Status.SUSPENDED, Reason.PREFIX_DRIFT, 1)


AWAY = 3  # seconds on an idle machine in which the API must see a call go that nobody wants any more


@pytest.mark.parametrize("variant", ["headers", "pings", "no answer", "text that never ends"])
@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_cancel_and_deadline_close_the_stream_at_once(variant: str, end: str) -> None:
    text = [part for _ in range(1000) for part in (0.05, sse.text_delta("x"))]
    scripts = {
        "headers": Script().then_sse("hang"),
        "pings": Script().then_ping(every=0.05),
        "no answer": Script().then_hang(),
        "text that never ends": Script().then_sse(sse.message_start(), sse.text_start(), *text),
    }
    async with stage(scripts[variant]) as scene:
        scene.start()
        id_ = await scene.submit(timeout_ms=2000 if end == "deadline" else None)
        await scene.api.until_hits(1)
        began = time.monotonic()
        if end == "cancel":
            await scene.cancel(id_)
        else:
            await scene.until(id_, lambda run: run.status.final)
        await scene.api.until(lambda: scene.api.requests[0].aborted, within=AWAY * slowness())
        run = await scene.settled(id_)
        assert run.status is (Status.CANCELLED if end == "cancel" else Status.TIMED_OUT)
        assert end == "deadline" or time.monotonic() - began < AWAY * slowness()
        assert scene.api.hits() == 1


# ---- A07


@pytest.mark.parametrize("max_tokens", [32_000, 128_000])
async def test_a07_a_large_max_tokens_is_asked_for(max_tokens: int) -> None:
    async with stage(Script().then_text("done")) as scene:
        scene.serve(max_tokens=max_tokens)
        run = await scene.play()
        assert (scene.api.hits(), run.status) == (1, Status.SUCCEEDED), "A07.1"
        assert scene.asked("go", 1)["max_tokens"] == max_tokens, "A07.1"


async def test_a07_what_no_model_has_is_refused_before_the_first_request() -> None:
    async with stage(Script().then_text("done")) as scene:
        run = await scene.play(max_tokens=128_001)
        assert (scene.api.hits(), run.status, run.reason) == (0, Status.FAILED, Reason.CONFIG), "A07.1"
        assert "128001" in run.detail


@pytest.mark.parametrize(
    "options",
    [{"no_such_argument": 1}, {"extra_headers": {"x-broken": "a\nb"}}, {"extra_headers": 7}],
    ids=["an argument it does not know", "a header that cannot be sent", "headers of another type"],
)
async def test_a07_an_error_of_the_sdk_before_any_request_is_final(options: dict[str, object]) -> None:
    async with stage(Script().then_text("done")) as scene:
        scene.serve(agents=[Agent("odd", MODEL, options=options)])
        run = await scene.play(agent="odd")
        assert (scene.api.hits(), run.status, run.reason) == (0, Status.FAILED, Reason.CONFIG), "A07.2"
        assert len(scene.log(run.id, ModelStepStarted)) == 1, "A07.2: no retry"
        assert scene.log(run.id, ModelStepCompleted) == []
        await asyncio.sleep(0)
        assert not scene.accidents, "A07.2: no worker restart"


# ---- what a gateway may send: an event that the log refuses would end the worker, and every worker after it

SAID = [{"type": "text", "text": "hi"}]
CALL = {"type": "tool_use", "name": "act", "input": {}}
NONSENSE = {
    "more tokens than there are": Script().then_message(SAID, "end_turn", {"input_tokens": 2**63, "output_tokens": 5}),
    "a cost beyond money": Script().then_message(SAID, "end_turn", {"input_tokens": 1, "output_tokens": 10**18}),
    "half a character as stop reason": Script().then_message(SAID, "\ud800"),
    "a stop reason of megabytes": Script().then_message(SAID, "x" * 3_000_000),
    "half a character as model": Script().then_message(SAID, "end_turn", model="\ud800"),
    "a number as model": Script().then_message(SAID, "end_turn", model=7),
    "a number as message id": Script().then_message(SAID, "end_turn", id=7),
    "a tool_use id of megabytes": Script().then_message([CALL | {"id": "x" * 1_100_000}], "tool_use"),
}
TOO_LARGE = {
    "an answer of megabytes": Script().then_message([{"type": "text", "text": "x" * 2_000_000}], "end_turn"),
    "stop details of megabytes": Script().then_message([], "refusal", stop_details={"type": "x" * 2_000_000}),
}


@pytest.mark.parametrize("variant", NONSENSE | TOO_LARGE)
async def test_an_answer_that_cannot_be_written_down_ends_its_run_and_not_the_worker(variant: str) -> None:
    scripts = {"go": (NONSENSE | TOO_LARGE)[variant].for_ever(), "other": Script().then_text("done")}
    async with stage(scripts) as scene:
        scene.serve(recording(scene.ledger, "act"))
        run = await scene.play()
        reason = Reason.UNSUPPORTED_RESPONSE if variant in TOO_LARGE else Reason.INVALID_MODEL_RESPONSE
        assert (run.status, run.reason, scene.api.hits("go")) == (Status.FAILED, reason, 1)
        assert (await scene.play("other")).status is Status.SUCCEEDED
        assert not scene.ledger


@pytest.mark.parametrize("error_type", ["a\\ud800", "a" * 3_000_000], ids=["half a character", "megabytes"])
async def test_an_error_that_cannot_be_written_down_is_made_to_fit(error_type: str) -> None:
    body = f'{{"type":"error","error":{{"type":"{error_type}","message":"m\\ud800"}}}}'
    async with stage(Script().then_fail(400, body=body).for_ever()) as scene:
        run = await scene.play()
        (failure,) = scene.log(run.id, ModelStepFailed)
        assert (run.reason, scene.api.hits()) == (Reason.MODEL_REQUEST, 1)
        assert failure.error_type in ("a?", "a" * 500)
