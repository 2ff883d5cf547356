"""Progress of the local stack for people: bars on a terminal, a line per stage elsewhere."""

import contextlib
from collections.abc import Iterator

from rich import progress as rich_progress
from rich.console import Console

from runfold.local.progress import Progress


@contextlib.contextmanager
def shown(console: Console) -> Iterator[Progress]:
    """Inside the block the yielded `Progress` is visible on `console`; on a terminal nothing of it stays behind."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = rich_progress.SpinnerColumn(), "{task.description}", rich_progress.BarColumn(), rich_progress.TimeElapsedColumn()
    with rich_progress.Progress(*columns, console=console, transient=True) as bars:
        yield _bars(bars)


def _bars(bars: rich_progress.Progress) -> Progress:
    tasks: dict[str, rich_progress.TaskID] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done)

    return progress


def _lines(console: Console) -> Progress:
    seen: set[str] = set()

    def progress(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            console.print(f"{what} …", highlight=False)

    return progress
