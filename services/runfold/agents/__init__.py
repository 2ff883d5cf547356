"""What a user of Runfold writes: agents, and the app that a worker serves."""

from runfold.agents.agent import Agent
from runfold.agents.app import App
from runfold.agents.loading import load_app

__all__ = ["Agent", "App", "load_app"]
