"""Commands about the log itself: its topic, and a run folded from it."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from runfold.audit.files import ExportedLog
from runfold.cli.options import Bootstrap, Json, Topic, need_bootstrap, refuse_beside_a_file, settings
from runfold.cli.wiring.topic import codec
from runfold.config import Settings
from runfold.core.errors import RunfoldError
from runfold.core.events import Record
from runfold.core.run import Run, fold
from runfold.log.kafka import KafkaTail, check_topic, create_topic
from runfold.log.wire import key_of

DEFAULT_PARTITIONS = 12  # of a cluster
out = Console(soft_wrap=True, highlight=False, markup=False)


def create(
    partitions: Annotated[
        int | None, typer.Option(min=1, help="For the life of the topic; 12 by default.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
) -> None:
    """Create the topic, <topic>.dead for dead letters and <topic>.live for live text; the first two are checked if they exist."""
    chosen = need_bootstrap(settings(bootstrap=bootstrap, topic=topic))
    wanted = partitions or DEFAULT_PARTITIONS
    if create_topic(chosen, wanted):
        print(f"{chosen.topic}: created with {wanted} partitions")
        return
    found = check_topic(chosen)
    if partitions not in (None, found):
        wish = f"expected {partitions} partitions, it is there already with {found}"
        raise RunfoldError(f"{chosen.topic}: {wish}: their number stays as it is, take another topic")
    print(f"{chosen.topic}: was there already: ok, {found} partitions")


def check(bootstrap: Bootstrap = None, topic: Topic = None) -> None:
    """Check that the topic is what Runfold needs. Exit code 1, and what differs, if not."""
    chosen = need_bootstrap(settings(bootstrap=bootstrap, topic=topic))
    found = check_topic(chosen)
    print(f"{chosen.topic}: ok, {found} partitions")


def replay(
    run_id: Annotated[str, typer.Argument(help="Which run.")],
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    file: Annotated[Path | None, typer.Option(help="An exported log instead of the topic.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Fold a run from the log alone and print its conversation as the model sees it."""
    if file:
        refuse_beside_a_file(bootstrap=bootstrap, topic=topic)
    chosen = settings(bootstrap=bootstrap, topic=topic)
    records = _exported(file, run_id) if file else asyncio.run(_records(need_bootstrap(chosen), run_id))
    run = fold(records)
    if run is None:
        raise RunfoldError(f"the log {str(file or chosen.topic)!r} knows no run {run_id}")
    print(json.dumps(_document(run), ensure_ascii=False)) if as_json else _print(run)


def _exported(file: Path, run_id: str) -> list[Record]:
    found = ExportedLog(file).deliveries(only=run_id)
    return [delivery for delivery in found if isinstance(delivery, Record) and key_of(delivery.event) == run_id.encode()]


async def _records(chosen: Settings, run_id: str) -> list[Record]:
    tail = await KafkaTail.open(chosen, codec(chosen))
    try:
        return await tail.records(run_id, 0)
    finally:
        await tail.close()


def _document(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "status": run.status,
        "reason": run.reason,
        "steps": run.steps,
        "totalTokens": run.usage.total,
        "costUsd": None if run.cost is None else str(run.cost),
        "output": run.output,
        "lastOffset": run.last_offset,
        "messages": [{"role": message.role, "content": json.loads(message.content_json)} for message in run.messages],
    }


def _print(run: Run) -> None:
    for message in run.messages:
        out.print(f"{message.role}:")
        for block in json.loads(message.content_json):
            out.print(f"  {_block(block)}")
    reason = f" reason={run.reason}" if run.reason else ""
    out.print(f"{run.status}{reason} steps={run.steps} tokens={run.usage.total} offset={run.last_offset}")


def _block(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"{block['name']}({json.dumps(block['input'], ensure_ascii=False)}) id={block['id']}"
        case "tool_result":
            mark = "error " if block.get("is_error") else ""
            return f"{mark}result of {block['tool_use_id']}: {json.dumps(block['content'], ensure_ascii=False)}"
        case _:
            return json.dumps(block, ensure_ascii=False)
