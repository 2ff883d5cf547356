"""A whole deployment in one process, under virtual time, with every fault that a seed can choose: see docs/simulation.md."""

from runfold.simulation.explore import explore
from runfold.simulation.simulate import Outcome, simulate

__all__ = ["Outcome", "explore", "simulate"]
