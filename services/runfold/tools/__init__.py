"""Tools: typed Python functions that a model may call.

`decorator` makes a `Tool` of a function, `registry` gathers tools by name, `executor` runs them behind `ports.Tools`.
The way of a call: text → `inputs` → the function (on the loop, or in one of `threads`) → `encoding` → `results`.
"""

from runfold.tools.context import Content, ToolContext, ToolError
from runfold.tools.decorator import Tool, tool
from runfold.tools.executor import Executor
from runfold.tools.registry import Registry
from runfold.tools.threads import Threads

__all__ = ["Content", "Executor", "Registry", "Threads", "Tool", "ToolContext", "ToolError", "tool"]
