"""All commands of ``runfold`` under one roof."""

from importlib import metadata
from typing import Annotated

import typer

from runfold.cli.audit import export, verify_log
from runfold.cli.doctor import doctor
from runfold.cli.log import check, create, replay
from runfold.cli.processes import api, projector, worker
from runfold.cli.quarantine import quarantine
from runfold.cli.runs import cancel, list_runs, resume, submit, watch
from runfold.cli.simulate import simulate
from runfold.cli.stack import demo, dev

app = typer.Typer(
    name="runfold",
    help="Durable AI agent runs on a Kafka log. Settings are environment variables RUNFOLD_<NAME>; options override them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
topic = typer.Typer(help="The topic that is the log.", no_args_is_help=True)
app.add_typer(topic, name="topic")
app.add_typer(quarantine, name="quarantine")

def _say_version(asked: bool) -> None:
    if asked:
        print(f"runfold {metadata.version('runfold')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print it and exit.", is_eager=True, callback=_say_version)] = False,
) -> None:
    pass


for command in (demo, dev, worker, api, projector, submit, watch, cancel, resume, replay, export, doctor, simulate):
    app.command()(command)
app.command(name="runs")(list_runs)
app.command(name="verify-log")(verify_log)
topic.command()(create)
topic.command()(check)
