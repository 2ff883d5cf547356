"""What the local stack needs of this machine, and what to do about what is missing: its part of `runfold doctor`."""

import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from runfold.core.errors import StackError
from runfold.local import java, postgres
from runfold.local.jars import ELSEWHERE, LOCKED, SIZE_MB, KafkaJars
from runfold.local.wheels import INSTALL


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `remedy` is empty where `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks(jars: KafkaJars) -> list[Check]:
    """Java, Kafka's jars and PostgreSQL's programs. Starts, fetches and changes nothing; takes under a second."""
    return [_found("Java", _java, java.REMEDY), _jars(jars), _found("PostgreSQL", _postgres, postgres.REMEDY)]


def _found(name: str, look: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, look())
    except StackError as error:
        return Check(name, False, str(error).removesuffix(f": {remedy}"), remedy)


def _java() -> str:
    found = java.find_java()
    return f"Java {found.major}: {found.path}"


def _postgres() -> str:
    program = postgres.find_programs() / "postgres"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return f"{said.stdout.strip() or said.stderr.strip()}: {program}"


def _jars(jars: KafkaJars) -> Check:
    name = "Kafka"
    try:
        missing = jars.missing()
    except StackError as error:
        return Check(name, False, str(error).removesuffix(f": {ELSEWHERE}"), ELSEWHERE)
    if not missing:
        return Check(name, True, f"{len(LOCKED)} jars in {jars.directory}")
    if importlib.util.find_spec("jgo"):
        return Check(name, True, f"{len(missing)} of {len(LOCKED)} jars ({SIZE_MB} MB) are fetched at the first start")
    return Check(name, False, f"{len(missing)} of {len(LOCKED)} jars have to be fetched, which needs the package jgo", INSTALL)
