"""The house stands as it was drawn: imports point down, the core is pure, modules say what they are for."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for root in ("services", "projector") for path in (ROOT / root).rglob("*.py") if path.stat().st_size)
CORE = sorted((ROOT / "services" / "runfold" / "core").glob("*.py"))
STANDARD = ("collections", "dataclasses", "decimal", "enum", "functools", "hashlib", "json", "math", "re", "types", "typing")
PURE = {*STANDARD, "runfold.core"}


def test_import_contracts_hold() -> None:
    script = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    roots = os.pathsep.join(str(ROOT / root) for root in ("services", "projector"))
    environment = os.environ | {"PYTHONPATH": roots}  # this checkout, whatever is installed
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def is_pure(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in PURE)


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_imports_nothing_that_could_look_at_a_clock_or_the_world(path: Path) -> None:
    """A list of what it may import: a list of what it may not, as the import contract is, is never complete."""
    assert [module for module in imports(path) if not is_pure(module)] == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_opens_prints_and_runs_nothing(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    assert called & {"open", "print", "input", "exec", "eval", "__import__", "hash", "id"} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_says_what_it_is_for_and_stays_small(path: Path) -> None:
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), "it opens with a docstring that says what it is for"
    assert len(source.splitlines()) <= 500
