"""What a check says in the end: one line of figures and a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"  # it could not be tried here; says nothing


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of ``values`` that ``percent`` of them do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def largest(values: Sequence[float]) -> float:
    """NaN of none."""
    return max(values, default=math.nan)


@dataclass(slots=True)
class Report:
    """The figures of one check, in the order in which they are said, and what is wrong with them.

    ``broken`` is what may never be; ``missed`` are targets that were not reached, by how much: the machine may have been busy.
    """

    name: str
    figures: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    missed: dict[str, float] = field(default_factory=dict)  # times the target, infinite for what never came
    skipped: str = ""  # why nothing was tried

    def say(self, figure: str) -> None:
        self.figures.append(figure)

    def at_most(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """A figure with a target. NaN is no figure."""
        said = f"{what} {_short(value)}{unit} (<= {_short(limit)})"
        self.say(said)
        if not value <= limit:
            self.missed[said] = value / limit if value == value else math.inf

    def none(self, what: str, found: Sequence[object]) -> None:
        """Things of which there may be none; the first three are shown."""
        self.say(f"{what} {len(found)}")
        if found:
            self.broken.append(f"{what}: {'; '.join(str(each)[:300] for each in found[:3])}")

    def wants(self, what: str, holds: bool) -> None:
        if not holds:
            self.broken.append(f"expected {what}")

    @property
    def verdict(self) -> Verdict:
        if self.skipped:
            return Verdict.SKIP
        return Verdict.FAIL if self.broken or self.missed else Verdict.PASS

    def __str__(self) -> str:
        wrong = [f"[missed: {miss}]" for miss in self.missed] + [f"[BROKEN: {what}]" for what in self.broken]
        words = [self.skipped] if self.skipped else [", ".join(self.figures), *wrong]
        return f"{self.name}: {' '.join(words)}: {self.verdict}"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value == value else "unknown"
