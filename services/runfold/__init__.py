"""Durable AI agent runs on a Kafka log.

What an agent is written with can be imported from here. It is fetched on first use, so that parts which need none of it (the
core, the keeper, the projector) do not pay for pydantic and asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runfold.agents import Agent, App
    from runfold.tools import Content, ToolContext, ToolError, tool

__all__ = ["Agent", "App", "Content", "ToolContext", "ToolError", "tool"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'runfold' has no attribute {name!r}")
    return getattr(import_module("runfold.agents" if name in ("Agent", "App") else "runfold.tools"), name)
