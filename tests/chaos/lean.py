"""Workers that start in a third of the time: without the SDK of the model that they replace anyway. To be imported first.

Not where the time of a fork is measured: a process with the SDK in it is larger.
"""

import os
import sys
from types import ModuleType

LEAN = "CHAOS_LEAN"  # environment variable of the workers


class NoModel:
    """Takes the place of `AnthropicModel` until `ChaosModel` does."""

    def __init__(self, **_: object) -> None: ...


def slim() -> None:
    stand_in = ModuleType("runfold.model.anthropic")
    stand_in.__dict__["AnthropicModel"] = NoModel
    sys.modules[stand_in.__name__] = stand_in


if os.environ.get(LEAN):
    slim()
