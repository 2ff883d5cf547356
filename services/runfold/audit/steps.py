"""What holds of the steps of a run. Each function is one invariant, as in `invariants`.

`START`, `MODEL_START`, `TOOL_START` and `RESULT` say which are asked of which event.
"""

import json
from typing import Any

from runfold.audit.findings import Check
from runfold.audit.trace import Result, Trace
from runfold.core.conversation import dump
from runfold.core.events import ModelStepStarted, Reason, ToolStepFinished, ToolStepStarted

Start = ModelStepStarted | ToolStepStarted

LAST_WORDS = {"end_turn", "stop_sequence", "refusal", "model_context_window_exceeded"}  # stop reasons after which a run only ends


# ---- the start of a step


def start_before_steps(trace: Trace, event: Start) -> str | None:
    """No step begins before RunStarted."""
    return None if trace.started else f"step {event.seq} begins and the run has not started"


def seqs_without_gaps(trace: Trace, event: Start) -> str | None:
    """Steps are numbered from 1, without gaps, in the order in which they begin; a number belongs to one step."""
    step = trace.steps.get(event.seq)
    if step is None:
        return None if event.seq == trace.highest + 1 else f"step {event.seq} begins and {trace.highest} is the highest so far"
    if (step.call is None) == isinstance(event, ModelStepStarted):
        return None
    return f"seq {event.seq} is that of a {'model' if step.call is None else 'tool'} step"


def attempts_without_gaps(trace: Trace, event: Start) -> str | None:
    """The attempts of a step are numbered from 1, without gaps."""
    before = trace.steps[event.seq].attempt if event.seq in trace.steps else 0
    return None if event.attempt == before + 1 else f"attempt {event.attempt} of step {event.seq} follows attempt {before}"


def no_start_after_the_result(trace: Trace, event: Start) -> str | None:
    """A step that has its result, or failed for good, does not begin again."""
    step = trace.steps.get(event.seq)
    return f"step {event.seq} begins again and is over" if step is not None and step.over else None


def one_attempt_at_a_time(trace: Trace, event: Start) -> str | None:
    """Under one lease a step begins again only when its last attempt has failed."""
    step = trace.steps.get(event.seq)
    if step is None or not step.open or step.epoch != event.epoch:
        return None
    return f"step {event.seq} begins again while attempt {step.attempt} is open under the same lease, {event.epoch}"


def last_answer_is_last(trace: Trace, event: Start) -> str | None:
    """No step begins after an answer that ends the run."""
    if trace.answer is None or trace.answer.stop_reason not in LAST_WORDS:
        return None
    return f"step {event.seq} begins after the answer of step {trace.answer.seq}, which stopped with {trace.answer.stop_reason}"


def suspended_runs_wait(trace: Trace, event: Start) -> str | None:
    """No step of a suspended run begins, but for the other calls of a turn that has one of unknown outcome."""
    other = isinstance(event, ToolStepStarted) and event.tool_use_id != trace.waiting
    beside = other and trace.suspended is Reason.OUTCOME_UNKNOWN
    return None if trace.suspended is None or beside else f"step {event.seq} begins and the run is suspended: {trace.suspended}"


def steps_within_the_cap(trace: Trace, event: Start) -> str | None:
    """No step begins beyond the step cap that the run was given."""
    cap = trace.limits.max_steps
    return f"step {event.seq} begins and the run may take {cap}" if cap is not None and event.seq > cap else None


def cost_below_the_ceiling(trace: Trace, event: Start) -> str | None:
    """No step begins for the first time when the cost ceiling is reached, or the cost is not known."""
    ceiling = trace.limits.cost_ceiling
    if ceiling is None or event.attempt > 1 or (trace.cost is not None and trace.cost < ceiling):
        return None
    return f"step {event.seq} begins and {trace.cost} of {ceiling} USD are spent"


# ---- the start of a model step


def turn_before_is_complete(trace: Trace, event: ModelStepStarted) -> str | None:
    """A model step begins when the model step before it has its answer and every tool call of that answer its result."""
    answer = trace.answer
    if event.seq > trace.model_seq > (answer.seq if answer else 0):
        return f"step {event.seq} begins and model step {trace.model_seq} has no answer"
    for seq in range(answer.seq + 1, answer.seq + 1 + len(answer.uses)) if answer else ():
        if seq not in trace.steps or not trace.steps[seq].over:
            return f"step {event.seq} begins and the tool call of step {seq} has no result"
    return None


def budget_is_reserved(trace: Trace, event: ModelStepStarted) -> str | None:
    """A model step reserves at least one token, and no more than the budget leaves beside the last prompt and lost calls."""
    budget = trace.limits.token_budget
    left = None if budget is None else budget - trace.spent - trace.unheard(event.seq) - trace.prompt
    if event.reserved_tokens >= 1 and (left is None or event.reserved_tokens <= left):
        return None
    return f"{event.reserved_tokens} tokens are reserved, {'any number' if left is None else left} left"


def prefix_is_the_conversation(trace: Trace, event: ModelStepStarted) -> str | None:
    """prefix_digest is the digest of the conversation so far."""
    expected = trace.run.digest
    return None if event.prefix_digest == expected else f"prefix_digest is {event.prefix_digest}, the log folds to {expected}"


# ---- the start of a tool step


def truncated_calls_never_run(trace: Trace, event: ToolStepStarted) -> str | None:
    """No tool call of an answer that max_tokens cut off is run."""
    answer = trace.answer
    if answer is None or answer.seq != event.model_seq or answer.stop_reason != "max_tokens":
        return None
    return f"tool {event.name[:100]!r} is run for the answer of step {answer.seq}, which max_tokens cut off"


def calls_were_asked_for(trace: Trace, event: ToolStepStarted) -> str | None:
    """A tool step runs a call of the newest answer: its id, name and input, numbered by its place in the answer."""
    answer = trace.answer
    if answer is None or event.model_seq != answer.seq:
        return f"it is for the answer of step {event.model_seq}; the newest answer is that of {answer and answer.seq}"
    place = event.seq - answer.seq - 1
    if not 0 <= place < len(answer.uses):
        return f"step {event.seq} runs a call and the answer of step {answer.seq} asks for {len(answer.uses)}"
    use = answer.uses[place]
    if (use.get("id"), use.get("name")) != (event.tool_use_id, event.name):
        asked = f"{use.get('name')!r} as {use.get('id')!r}"
        return f"it runs {event.name[:100]!r} as {event.tool_use_id[:100]!r}, asked for was {asked[:200]}"
    return None if _same_input(event.input_json, use.get("input")) else f"the input of {event.tool_use_id!r} is another one"


def _same_input(given: str, asked: Any) -> bool:
    """What JSON cannot carry is given to the tool as text."""
    text = dump(asked)
    try:
        return given == text or json.loads(given) in (json.loads(text), text)
    except (ValueError, RecursionError):
        return False


def one_key_per_call(trace: Trace, event: ToolStepStarted) -> str | None:
    """The idempotency key of a tool call is <run id>/<model_seq>/<tool_use_id>, in all its attempts."""
    expected = f"{event.run_id}/{event.model_seq}/{event.tool_use_id}"
    return None if event.idempotency_key == expected else f"the key is {event.idempotency_key[:300]!r}, expected {expected!r}"


def unrepeatable_calls_run_once(trace: Trace, event: ToolStepStarted) -> str | None:
    """A call that cannot be repeated begins a second time only when a person has resumed the run that waits for it."""
    step = trace.steps.get(event.seq)
    if step is None or step.repeatable or not step.open:
        return None
    return f"tool {event.name[:100]!r} (step {event.seq}) cannot be repeated, and nobody has allowed it"


# ---- the end of a step


def results_have_a_start(trace: Trace, event: Result) -> str | None:
    """A result has the seq, attempt and tool call of a start before it."""
    call = (event.model_seq, event.tool_use_id) if isinstance(event, ToolStepFinished) else None
    step = trace.steps.get(event.seq)
    if step is not None and step.call == call and 1 <= event.attempt <= step.attempt:
        return None
    return f"attempt {event.attempt} of step {event.seq} ends and never began"


def one_result_per_step(trace: Trace, event: Result) -> str | None:
    """A step has one result, an attempt one end."""
    step = trace.steps[event.seq]
    if step.over:
        return f"step {event.seq} has its result already"
    return None if step.open or event.attempt < step.attempt else f"attempt {event.attempt} of step {event.seq} has ended already"


def results_are_of_the_open_attempt(trace: Trace, event: Result) -> str | None:
    """A result is of the newest attempt of its step."""
    newest = trace.steps[event.seq].attempt
    return None if event.attempt == newest else f"attempt {event.attempt} of step {event.seq} ends, the newest is {newest}"


START: tuple[Check, ...] = (
    start_before_steps,
    seqs_without_gaps,
    no_start_after_the_result,
    attempts_without_gaps,
    one_attempt_at_a_time,
    last_answer_is_last,
    suspended_runs_wait,
    steps_within_the_cap,
    cost_below_the_ceiling,
)
MODEL_START: tuple[Check, ...] = (*START, turn_before_is_complete, budget_is_reserved, prefix_is_the_conversation)
TOOL_START: tuple[Check, ...] = (
    truncated_calls_never_run,
    *START,
    calls_were_asked_for,
    one_key_per_call,
    unrepeatable_calls_run_once,
)
RESULT: tuple[Check, ...] = (results_have_a_start, one_result_per_step, results_are_of_the_open_attempt)
