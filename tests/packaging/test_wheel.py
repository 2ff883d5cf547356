"""The wheel holds what the checkout holds: both packages, the schemas, and every file that is no Python."""

import importlib.util
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
import importlib.metadata, json, pathlib, runfold, runfold_projector
from runfold.log.codec import Codec
from runfold.log.schemas import older, record_names, root
Codec()
files = lambda package: [str(path) for path in pathlib.Path(package.__file__).parent.rglob("*") if path.is_file()]
print(json.dumps({
    "files": files(runfold) + files(runfold_projector),
    "schemas": str(root()),
    "records": sorted(record_names()),
    "older": len(list(older())),
    "scripts": [entry.value for entry in importlib.metadata.distribution("runfold").entry_points],
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a fresh environment with the wheel in it; the dependencies are this environment's, after it."""
    work = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []  # without: pip fetches it
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", *isolation, "--wheel-dir", work, ROOT], check=True)
    (wheel,) = work.glob("runfold-*.whl")
    venv.create(work / "env", with_pip=False, symlinks=True)
    subprocess.run([*pip, "--python", python(work / "env"), "install", "--no-deps", "--no-index", wheel], check=True)
    (site,) = (work / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return site


@pytest.fixture(scope="module")
def installed(site: Path) -> Any:
    """What the installed packages say of themselves."""
    done = subprocess.run([python(site.parents[2]), "-I", "-c", ASK], check=True, capture_output=True, cwd=site)
    return json.loads(done.stdout)


def python(environment: Path) -> Path:
    return environment / "bin" / "python"


def sources(*roots: str) -> set[str]:
    """Files of the checkout under ``roots``, as paths below them; what running leaves behind is left out."""
    found = (path.relative_to(ROOT / root) for root in roots for path in (ROOT / root).rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_packages_and_schemas_come_from_the_wheel(installed: Any, site: Path) -> None:
    assert Path(installed["schemas"]) == site / "runfold" / "schemas"
    assert all(Path(file).is_relative_to(site) for file in installed["files"])
    assert "runfold.cli:main" in installed["scripts"]


def test_the_wheel_has_the_schemas_of_the_checkout(installed: Any) -> None:
    schemas = sources("schemas")
    assert {f"{name}.avsc" for name in installed["records"]} == {path for path in schemas if "/" not in path}
    assert installed["older"] == len([path for path in schemas if path.startswith("older/")])


def test_the_wheel_has_every_file_of_both_packages_and_no_other(installed: Any, site: Path) -> None:
    shipped = {str(Path(file).relative_to(site)) for file in installed["files"] if "__pycache__" not in file}
    expected = sources("services", "projector") | {f"runfold/schemas/{path}" for path in sources("schemas")}
    assert shipped == expected
    assert {"runfold/py.typed", "runfold_projector/py.typed"} <= shipped
