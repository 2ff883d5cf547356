"""The agents of the cases. Their tools leave a line in the ledger of side effects and do nothing else."""

import os

from runfold import Agent, App, ToolContext, tool
from runfold.tools import Tool
from tests.cases.harness_world import execute

MODEL = "claude-sonnet-5-5"


def acting(name: str) -> Tool[..., str]:
    """A tool as the cases expect one: it writes, it may be repeated, it may run beside others."""

    @tool(name=name, side_effect="write", idempotency="required")
    def act(context: ToolContext, n: int = 0) -> str:
        """Do something to the world.

        Args:
            n: How much of it.
        """
        execute(name, {"n": n}, context)
        return f"{name} is done"

    return act


@tool(side_effect="write", idempotency="required")
def boom(context: ToolContext) -> str:
    """End the process."""
    execute("boom", {}, context)
    os._exit(137)


@tool(side_effect="write", idempotency="required")
def shout(context: ToolContext) -> str:
    """Print, in Python and past it."""
    print(f"hello from {context.run_id}")
    os.write(1, f"past Python {context.run_id}\n".encode())
    execute("shout", {}, context)
    return "shouted"


app = App([Agent("default", model=MODEL, system="You act.", tools=[*map(acting, "abcd"), boom, shout])])
