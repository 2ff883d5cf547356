"""Options that several commands share, and how they and the environment become `Settings`."""

from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from runfold.config import Settings, unknown_variables
from runfold.core.errors import ConfigError

Bootstrap = Annotated[str | None, typer.Option(help="Kafka, host:port[,host:port] (RUNFOLD_BOOTSTRAP).", show_default=False)]
Dsn = Annotated[str | None, typer.Option(help="PostgreSQL, postgresql://… (RUNFOLD_DSN).", show_default=False)]
Topic = Annotated[str | None, typer.Option(help="The topic that is the log (RUNFOLD_TOPIC).", show_default=False)]
Group = Annotated[str | None, typer.Option(help="The workers' consumer group (RUNFOLD_GROUP).", show_default=False)]
Api = Annotated[str, typer.Option(envvar="RUNFOLD_API", help="Where the HTTP API is.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for scripts instead of text for people.")]

DEFAULT_API = "http://127.0.0.1:8080"


def settings(**overrides: Any) -> Settings:
    """The environment's settings with those options that were given. Raises `ConfigError`, which names what cannot be used."""
    if unknown := unknown_variables():
        raise ConfigError(f"no such setting: {', '.join(unknown)}; docs/operations.md lists them")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except SettingsError as error:  # it names the field only in its words; the reason is the cause
        names = [name for name in Settings.model_fields if f'"{name}"' in str(error)]
        raise ConfigError(f"RUNFOLD_{''.join(names).upper()} is not JSON: {error.__cause__}") from None
    except ValidationError as error:
        raise ConfigError("; ".join(map(_said, error.errors()))) from None


def _said(problem: ErrorDetails) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    expected = problem["ctx"]["error"] if problem["type"] == "value_error" else problem["msg"]  # our rule, or pydantic's
    secret = name.startswith("kafka") or "@" in str(problem["input"])
    return f"RUNFOLD_{name.upper()}: {expected}" + ("" if secret else f", got {problem['input']!r}")


def refuse_beside_a_file(**given: object) -> None:
    """Raises `ConfigError` for an option about a topic where a file is read instead."""
    if names := ", ".join(f"--{name}" for name, value in given.items() if value is not None):
        raise ConfigError(f"expected a topic or a file, got a file and, for a topic, {names}: leave out either")


def need_bootstrap(chosen: Settings) -> Settings:
    if not chosen.bootstrap:
        raise ConfigError("no Kafka given: set RUNFOLD_BOOTSTRAP or --bootstrap (`runfold dev` starts one and prints it)")
    return chosen


def need_dsn(chosen: Settings) -> Settings:
    from runfold_projector.store import check_dsn  # a library that other commands do without

    if not chosen.dsn:
        raise ConfigError("no PostgreSQL given: set RUNFOLD_DSN or --dsn (`runfold dev` starts one and prints it)")
    check_dsn(chosen.dsn)
    return chosen
