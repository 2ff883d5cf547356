"""Credentials of the model API, which are its SDK's own business: whether there are any, and what stands in for them."""

import os

_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")


def variable() -> str | None:
    """The first environment variable in which the SDK would find credentials; None: there is none."""
    return next((name for name in _VARIABLES if os.environ.get(name)), None)


def scripted(url: str) -> dict[str, str]:
    """The environment of a worker whose model is the scripted one at ``url``, which asks for no key but must be given one."""
    return {"RUNFOLD_MODEL_BASE_URL": url, "ANTHROPIC_API_KEY": "scripted"}
