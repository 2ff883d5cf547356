"""A model in this process: answers come from a function and cost nothing."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from runfold.ports import ModelAnswer, ModelRequest

Reply = Callable[[ModelRequest], ModelAnswer | Awaitable[ModelAnswer]]


class ScriptedModel:
    """Answers with what ``reply`` returns, or awaits it; ``reply`` may raise `ModelFailure`, and tell
    ``request.heard`` what it says. ``calls`` counts."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.calls = 0

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        self.calls += 1
        answer = self._reply(request)
        return await answer if isawaitable(answer) else answer
