"""`runfold worker` with a model in its own process, so that a thousand open runs cost no HTTP. Started by `main`.

A run's input says how it goes: ``turns=8 from=2 to=4`` is eight turns, whose answers take 2 to 4 seconds each; every answer but
the last asks for one tool. What is done stands in the `ledger` before it is done. ``deaths``: how many of its workers a keeper
replaces before it leaves the group; more than in life, as here workers are killed for a living.
"""

import asyncio
import itertools
import json
import os
from multiprocessing.connection import Connection
from random import Random
from typing import Any
from unittest import mock

import tests.chaos.lean  # noqa: F401  # first: it decides what the imports below bring in
from runfold import Agent, App, ToolContext, cli, tool
from runfold.cli.wiring import keeper, worker
from runfold.cli.wiring.keeper import WorkerSpec
from runfold.core.events import Usage
from runfold.ports import ModelAnswer, ModelRequest
from runfold.worker import lease
from runfold.worker.resources import Resources
from tests.chaos import ledger, network

MODEL = "claude-sonnet-5-5"


@tool(side_effect="write", idempotency="required")
async def act(context: ToolContext) -> str:
    """Do something to the world."""
    ledger.write("tool", context.idempotency_key)
    return "done"


app = App([Agent("default", model=MODEL, system="You act.", tools=[act])])


class ChaosModel:
    """Answers as the run's input says. What it answers, and when, depends on nothing but the run and the step."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        id_ = f"{os.getpid()}-{next(self._numbers)}"
        ledger.write("call", request.run_id, request.seq, request.attempt, id_)
        plan = dict(word.split("=") for word in json.loads(request.messages[0].content_json)[0]["text"].split())
        draw = Random(f"{request.run_id} {request.seq}")
        await asyncio.sleep(draw.uniform(float(plan["from"]), float(plan["to"])))
        turn = sum(message.role == "assistant" for message in request.messages) + 1
        return _answer(request, turn, turn >= int(plan["turns"]), id_)


def _answer(request: ModelRequest, turn: int, last: bool, id_: str) -> ModelAnswer:
    call = {"type": "tool_use", "id": f"toolu_{turn:04}", "name": "act", "input": {}}
    content = [{"type": "text", "text": "That is all." if last else "On it."}, *([] if last else [call])]
    return ModelAnswer(
        content_json=json.dumps(content),
        stop_reason="end_turn" if last else "tool_use",
        usage=Usage(input_tokens=10, output_tokens=5),
        model=request.model,
        request_id=id_,
    )


# ---- the processes


def work(pipe: Connection, spec: WorkerSpec) -> None:
    async def resources(*words: Any) -> Resources:
        made = await worker.resources(*words)
        made.model = ChaosModel()
        return made

    ledger.write("worker", spec.name)
    worker.work(pipe, spec, resources)


def told(spec: WorkerSpec) -> lease.Keeper:
    ledger.write("keeper", spec.name)
    return _keeper(spec)


_keeper = keeper.keeper


def main(deaths: int = 1000) -> None:
    network.move()
    with (
        mock.patch.object(keeper, "WORKER", __name__),
        mock.patch.object(keeper, "keeper", told),
        mock.patch.object(lease, "DEATHS", deaths),
    ):
        cli.main()
