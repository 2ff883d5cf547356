"""The tables of docs/operations.md, made from the code. ``python -m tests.unit.docs_tables`` writes them into the page."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import Counter

from runfold import config
from runfold.telemetry.declaring import Metric
from runfold.telemetry.metrics import ApiMetrics, ProjectorMetrics, WorkerMetrics

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
END = "<!-- end of what is made -->\n"


def settings() -> str:
    """One row per field of `runfold.config.Settings`, explained by the comment beside it."""
    return "\n".join(["| variable | default | |", "|---|---|---|", *map(" | ".join, _settings()), ""])


def _settings() -> Iterator[tuple[str, str, str]]:
    source = Path(config.__file__).read_text("utf-8")
    lines = source.splitlines()
    (model,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in model.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = lines[node.lineno - 1][node.end_col_offset or 0 :].partition("# ")[2]
            default = config.Settings.model_fields[node.target.id].get_default(call_default_factory=True)
            yield f"| `RUNFOLD_{node.target.id.upper()}`", _shown(default), f"{comment} |"


def _shown(default: object) -> str:
    return "" if default in ("", None, {}) else f"`{default}`"


def metrics() -> str:
    """One row per metric, as it is scraped."""
    rows = [
        f"| `{_scraped(metric)}` | {process} | {metric.text} |"
        for process, exported in (("worker", WorkerMetrics), ("projector", ProjectorMetrics), ("api", ApiMetrics))
        for metric in exported.declared()
    ]
    return "\n".join(["| metric | of | |", "|---|---|---|", *rows, ""])


def _scraped(metric: Metric[Any]) -> str:
    name = f"{metric.name}_total" if metric.kind is Counter else metric.name
    return f"{name}{{{','.join(metric.labels)}}}" if metric.labels else name


TABLES = {
    "<!-- settings: made from services/runfold/config.py by tests/unit/docs_tables.py -->\n": settings,
    "<!-- metrics: made from services/runfold/telemetry/metrics.py by tests/unit/docs_tables.py -->\n": metrics,
}


def written(begin: str) -> str:
    """What stands behind a marker of the page."""
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(END)[0]


if __name__ == "__main__":
    for marker, made in TABLES.items():
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(marker + written(marker) + END, marker + made() + END), encoding="utf-8")
