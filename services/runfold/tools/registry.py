"""Tools by name, as one agent has them."""

from collections.abc import Iterable
from typing import Any

from runfold.core.errors import ConfigError
from runfold.tools.decorator import Tool

AnyTool = Tool[..., Any]


class Registry:
    """The tools of one agent, in the order given. Raises `ConfigError` for a name given twice and for what is no tool."""

    def __init__(self, tools: Iterable[AnyTool] = ()) -> None:
        self._tools: dict[str, AnyTool] = {}
        for tool in tools:
            self._add(tool)

    def _add(self, tool: Any) -> None:
        if not isinstance(tool, Tool):
            raise ConfigError(f"expected a tool, got {tool!r}: put @tool on the function")
        if tool.name in self._tools:
            raise ConfigError(f"two tools are called {tool.name!r}: give one of them another by @tool(name=…)")
        self._tools[tool.name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def get(self, name: str) -> AnyTool | None:
        return self._tools.get(name)

    def definitions(self) -> list[dict[str, Any]]:
        """As the Messages API takes them, always in the same order: another order is another prompt."""
        return [tool.definition() for tool in self._tools.values()]
