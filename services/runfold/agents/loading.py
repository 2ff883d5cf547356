"""From ``file.py:name`` or ``package.module:name`` to an `App`."""

import importlib
import sys
import traceback
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from runfold.agents.agent import Agent
from runfold.agents.app import App
from runfold.core.errors import ConfigError


def load_app(target: str) -> App:
    """Import what ``target`` names: an `App`, or one `Agent`, which makes an app of its own.

    ``:name`` may be left out when there is only one candidate. The directory of a file, or the current one for a module, is put
    on ``sys.path``, so that neighbours can be imported. Raises `ConfigError`; an error of the user's own code is its cause.
    """
    place, name = _split(target)
    module = _guarded(place, lambda: _file(Path(place)) if _is_path(place) else _module(place))
    found = _named(module, place, name) if name else _only(module, place)
    return found if isinstance(found, App) else App([found])


def _split(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    if not colon:
        return target, ""
    if not (place and name.isidentifier()):
        raise ConfigError(f"app {target!r}: expected file.py:name or package.module:name")
    return place, name


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _guarded(place: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except ConfigError as error:
        raise ConfigError(f"app {place}: {error}") from error
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(f"app {place}: {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})") from error


def _file(path: Path) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    _search(path.parent)
    name = f"runfold_app_{path.stem}"  # not the bare stem: a queue.py would hide the library's
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # type hints are resolved through it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module(name: str) -> ModuleType:
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"there is no module {error.name!r} here or on the Python path (a file ends in .py)") from error
        raise


def _search(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _named(module: ModuleType, place: str, name: str) -> App | Agent:
    if not hasattr(module, name):
        raise ConfigError(f"app {place}: it has no {name!r}; it has {_listed(_candidates(module))}")
    found: Any = getattr(module, name)
    if not isinstance(found, App | Agent):
        raise ConfigError(f"app {place}: {name!r} must be an App or an Agent, got {type(found).__name__}")
    return found


def _only(module: ModuleType, place: str) -> App | Agent:
    """The one App, or where there is none the one Agent."""
    candidates = _candidates(module)
    distinct = list({id(found): found for found in candidates.values()}.values())
    choice = [found for found in distinct if isinstance(found, App)] or distinct
    if len(choice) != 1:
        raise ConfigError(f"app {place}: say which by {place}:name; it has {_listed(candidates)}")
    return choice[0]


def _candidates(module: ModuleType) -> dict[str, App | Agent]:
    return {name: found for name, found in vars(module).items() if isinstance(found, App | Agent)}


def _listed(candidates: dict[str, App | Agent]) -> str:
    return ", ".join(f"{name} ({type(found).__name__})" for name, found in candidates.items()) or "no App and no Agent"
