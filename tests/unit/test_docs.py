"""README and docs/ are true as far as a machine can tell: links, names, commands, tables, and the agent of 20 lines."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from runfold.agents import load_app
from runfold.cli.app import app
from runfold.config import Settings
from tests.unit import docs_tables

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPOSE = ROOT / "compose" / "compose.yaml"

CODE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:services|projector|tests|schemas|examples|benchmarks|compose|docs)/[\w./-]+)`")
NAMED_TEST = re.compile(r"`(test_\w+)(…?)`")
COMMANDS: Any = typer.main.get_command(app)


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return CODE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of their words."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading there"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_named_files_and_tests_exist(page: Path) -> None:
    for path in NAMED_FILE.findall(prose(page)):
        assert (ROOT / path).exists(), path
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name, cut in NAMED_TEST.findall(prose(page)):
        assert f"def {name}" in tests if cut else f"def {name}(" in tests or f"{name}.py" in tests, name


# ---- the README


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 130


def test_the_agent_of_the_readme_is_the_example_and_can_be_served() -> None:
    example = ROOT / "examples" / "tickets.py"
    (shown,) = (code for language, code in CODE.findall(README.read_text(encoding="utf-8")) if language == "python")
    assert shown == example.read_text(encoding="utf-8")
    assert len(shown.splitlines()) <= 20
    served = load_app(str(example))
    assert served.definition("default") == served.definition("tickets") is not None


# ---- commands


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `runfold …` command in a text's code blocks and in its `code`, without what stands before."""
    spans = [*(code for _, code in CODE.findall(text)), *re.findall(r"`([^`\n]+)`", CODE.sub("", text))]
    for line in "\n".join(spans).splitlines():
        if match := re.match(r"(?:\$ )?(?:\./dev )?runfold (?=[a-z-])(.*)", line):
            yield shlex.split(match[1], comments=True)


def refuse_unknown(words: list[str]) -> None:
    """Whether the command line has such a command, with such options."""
    command: Any = COMMANDS
    path: list[str] = []
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            assert word in command.commands, f"runfold {' '.join(path)} has no command {word}"
            command, path = command.commands[word], [*path, word]
        elif word.startswith("--") and word != "--help":
            options = {name for parameter in command.params for name in parameter.opts}
            assert word.partition("=")[0] in options, f"runfold {' '.join(path)} has no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist_with_these_options(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0].isupper():
            continue  # `runfold COMMAND`
        refuse_unknown(words)


def test_the_check_of_commands_bites() -> None:
    for words in (["frobnicate"], ["topic", "delete"], ["submit", "hi", "--wach"]):
        with pytest.raises(AssertionError):
            refuse_unknown(words)
    assert list(commands("say `runfold runs` or\n```\n$ ./dev runfold topic create --partitions 4 # four\n```\n")) == [
        ["topic", "create", "--partitions", "4"],
        ["runs"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_environment_variables_are_settings(page: Path) -> None:
    known = {f"RUNFOLD_{name.upper()}" for name in Settings.model_fields} | {"RUNFOLD_API"}
    told = set(re.findall(r"RUNFOLD_[A-Z_]+", page.read_text(encoding="utf-8"))) - {"RUNFOLD_TEST_BOOTSTRAP", "RUNFOLD_TEST_DSN"}
    assert told <= known


def test_dev_has_the_two_commands() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    for command in re.findall(r"^\./dev (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE):
        assert command == "runfold" or re.search(rf"^    {command}\)", script, re.MULTILINE), command


# ---- operations


@pytest.mark.parametrize("marker", docs_tables.TABLES)
def test_the_tables_of_operations_are_made_from_the_code(marker: str) -> None:
    assert docs_tables.written(marker) == docs_tables.TABLES[marker](), "python -m tests.unit.docs_tables"


# ---- compose: no Docker runs in CI, so this is what there is


def entries(text: str) -> Iterator[tuple[str, str]]:
    """(path, value) of each entry of the plain YAML that the file keeps to: block mappings, two spaces, lists of scalars."""
    path: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip(" "))
        assert indent % 2 == 0, line
        assert "\t" not in line, line
        if line.lstrip().startswith("- "):
            yield "/".join([*path[: indent // 2], "-"]), line.strip()[2:]
            continue
        match = re.fullmatch(r" *([\w.<-]+): ?(.*?)(?: # .*)?", line)
        assert match, f"neither an entry nor a list item: {line}"
        path = [*path[: indent // 2], match[1]]
        yield "/".join(path), match[2]


def test_compose_is_well_formed() -> None:
    found = dict(entries(COMPOSE.read_text(encoding="utf-8")))
    services = {path.split("/")[1] for path in found if path.startswith("services/")}
    assert services == {"kafka", "postgres", "topic", "projector", "api", "worker"}
    for image in ("kafka", "postgres"):
        assert re.fullmatch(r"[\w/]+:[\d.]+", found[f"services/{image}/image"]), "pinned"
    for path, value in found.items():
        assert not value.startswith("*") or f"&{value[1:]}" in found.values(), path


def test_compose_runs_commands_and_sets_settings_that_exist() -> None:
    found = dict(entries(COMPOSE.read_text(encoding="utf-8")))
    for path, value in found.items():
        if path.endswith("/command"):
            refuse_unknown(json.loads(value))
    told = {path.rpartition("/")[2] for path in found if "RUNFOLD_" in path}
    assert told <= {f"RUNFOLD_{name.upper()}" for name in Settings.model_fields}
    grace = float(found["x-runfold/stop_grace_period"].removesuffix("s"))
    assert grace > Settings.model_fields["drain_seconds"].default + 5, "a drain and the keeper's patience fit in"


def test_the_image_is_made_of_what_there_is() -> None:
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE)
    assert copied
    for sources in copied:
        for source in sources.split():
            assert (ROOT / source).exists(), source
