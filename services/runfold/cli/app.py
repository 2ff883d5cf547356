"""All commands of ``runfold`` under one roof."""

import typer

from runfold.cli import doctor, log, processes, runs, stack

app = typer.Typer(
    name="runfold",
    help="Durable AI agent runs on a Kafka log. Settings are environment variables RUNFOLD_<NAME>; options override them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
topic = typer.Typer(help="The topic that is the log.", no_args_is_help=True)
app.add_typer(topic, name="topic")

app.command()(stack.demo)
app.command()(stack.dev)
app.command()(processes.worker)
app.command()(processes.api)
app.command()(processes.projector)
app.command()(runs.submit)
app.command(name="runs")(runs.list_runs)
app.command()(runs.watch)
app.command()(runs.cancel)
app.command()(log.replay)
app.command()(doctor.doctor)
topic.command(name="create")(log.create)
topic.command(name="check")(log.check)
