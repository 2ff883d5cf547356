"""What the simulated model says in each run, fixed by the seed: so the outcome of a run is known before it begins."""

import json
from dataclasses import dataclass, field
from typing import Any

from runfold.core.events import Status, Usage
from runfold.ports import ModelAnswer, ModelRequest
from runfold.simulation.chance import Chance

MAX_TOKENS = 1000  # of the agent's definition
HUGE = 700_000  # characters of an answer that fills a transaction
TOOLS = ("read", "write", "charge", "alone", "flaky", "slow", "stuck", "deadly", "missing")
WEIGHTS = (40, 40, 30, 20, 20, 20, 10, 1, 10)
LAST_TURNS = ("end_turn", "refusal", "unheard_of", "model_context_window_exceeded", "no text", "too long " * 100)
LAST_WEIGHTS = (40, 1, 1, 1, 1, 1)
ENDS = {"end_turn": Status.SUCCEEDED, "unheard_of": Status.SUSPENDED}


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. ``needs``: the max_tokens below which it is cut off."""

    content: list[dict[str, Any]]
    stop_reason: str
    needs: int = 100

    def answer(self, request: ModelRequest, turn: int) -> ModelAnswer:
        cut = request.max_tokens < self.needs
        usage = Usage(input_tokens=10 * turn, output_tokens=min(self.needs, request.max_tokens))
        return ModelAnswer(
            content_json=json.dumps(self.content, separators=(",", ":")),
            stop_reason="max_tokens" if cut else self.stop_reason,
            usage=usage,
            model=request.model,
        )


@dataclass(frozen=True, slots=True)
class Script:
    """The turns of one run. ``status``: how it ends when nobody and nothing stops it; ``output`` too, where it succeeds."""

    turns: tuple[Turn, ...]
    status: Status
    output: str = field(default="")

    def answer(self, request: ModelRequest) -> ModelAnswer:
        turn = 1 + sum(message.role == "assistant" for message in request.messages)
        return self.turns[turn - 1].answer(request, turn)


def script(run_id: str, chance: Chance) -> Script:
    turns = tuple(_middle(number, chance) for number in range(1, chance.randint(1, 5)))
    stop = chance.choices(LAST_TURNS, LAST_WEIGHTS)[0]
    text = f"answer of {run_id}" + "!" * (HUGE if chance.happens(0.01) else 0)
    if stop == "no text":
        return Script((*turns, Turn([{"type": "text"}], "end_turn")), Status.FAILED)
    last = Turn([{"type": "text", "text": text}], stop, _needs(chance))
    return Script((*turns, last), ENDS.get(stop, Status.FAILED), text)


def _middle(number: int, chance: Chance) -> Turn:
    if chance.happens(0.05):
        return Turn([{"type": "text", "text": "let me think"}], "pause_turn")
    names = chance.choices(TOOLS, WEIGHTS, k=chance.choice((1, 1, 1, 2, 3)))
    same = chance.happens(0.2)  # ids that begin again in each turn
    uses = [
        {"type": "tool_use", "id": f"call_{n}" if same else f"call_{number}_{n}", "name": name, "input": {"n": n}}
        for n, name in enumerate(names)
    ]
    return Turn(uses, "tool_use", _needs(chance))


def _needs(chance: Chance) -> int:
    return chance.choices((100, 2 * MAX_TOKENS, 4 * MAX_TOKENS, 8 * MAX_TOKENS), (80, 15, 15, 1))[0]
