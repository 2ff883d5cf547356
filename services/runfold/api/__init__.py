"""The HTTP API: `create_app` builds it from its ports, `serve` runs it."""

from runfold.api.app import create_app
from runfold.api.exchanges import Exchange
from runfold.api.server import serve

__all__ = ["Exchange", "create_app", "serve"]
