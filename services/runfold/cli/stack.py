"""``runfold dev`` and ``runfold demo``: a whole Runfold on this machine."""

import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from runfold.cli import credentials, demonstration
from runfold.cli.deployment import Deployment
from runfold.cli.options import Bootstrap, Dsn, Json, settings
from runfold.cli.processes import absolute
from runfold.cli.tailing import Follower
from runfold.cli.upkeep import Upkeep
from runfold.config import Settings
from runfold.core.errors import ConfigError
from runfold.local import loopback
from runfold.local.display import shown
from runfold.log.kafka import check_topic
from runfold.testing import Script

DEMO_APP = "runfold.local.demo_app:agent"
NO_KEY = "I am a script: set ANTHROPIC_API_KEY before `runfold dev` to talk to a model."
WITHOUT_A_KEY = Script().then_text(NO_KEY, 20, 15).for_ever()

console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep data and logs in this directory.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Watch a run survive kill -9: real Kafka and PostgreSQL, two workers, a scripted model. Exit code 1 if a promise breaks."""
    with ExitStack() as stack:
        root = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runfold-demo-", ignore_cleanup_errors=True)))
        _until_asked_to_stop()
        with shown(console) as progress:
            deployment = stack.enter_context(Deployment(root, settings(), progress))
        passed = demonstration.play(deployment, as_json)
    raise typer.Exit(not passed)


def dev(
    app: Annotated[str, typer.Option(help="Your agents: file.py:name or package.module:name.")] = DEMO_APP,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    state: Annotated[Path, typer.Option(help="Where data and logs live; the next start finds them.")] = Path(".runfold"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the API; another one when it is taken.")] = 8080,
    bootstrap: Bootstrap = None,
    dsn: Dsn = None,
) -> None:
    """Run everything here until Ctrl-C: Kafka and PostgreSQL (those not given), API, projector, workers."""
    _until_asked_to_stop()
    chosen, app = settings(bootstrap=bootstrap, dsn=dsn), absolute(app)
    answers = who_answers(chosen)
    with ExitStack() as stack:
        with shown(console) as progress:
            deployment = stack.enter_context(Deployment(state, chosen, progress))
        deployment.start_projector()
        url = deployment.start_api(0 if loopback.listening(port) else port)
        model = _model(deployment)
        upkeep = Upkeep(deployment, check_topic(deployment.settings), console.print)
        for number in range(1, workers + 1):
            upkeep.start(f"worker-{number}", app, {**model, "RUNFOLD_LOG_FORMAT": "console"})
            stack.enter_context(Follower(deployment.log_of(f"worker-{number}"), console.out))
        _say_where(deployment, url)
        console.print(f"model       {answers}\nCtrl-C stops everything; the data stays.")
        while True:
            upkeep.look()
            threading.Event().wait(0.5)


def _model(deployment: Deployment) -> dict[str, str]:
    """The environment of workers: the real API where there are credentials, else a script that says so."""
    return {} if credentials.variable() else credentials.scripted(deployment.start_scripted_model(WITHOUT_A_KEY))


def who_answers(chosen: Settings) -> str:
    """The model, for people. Raises `ConfigError` where one is named that nobody could ask: a script must not answer for it."""
    url, variable = chosen.model_base_url, credentials.variable()
    if variable:
        return f"{url or 'the Messages API'}, with {variable}"
    if url:
        advice = "set ANTHROPIC_API_KEY (any word where none is asked for), or unset it to have a script answer"
        raise ConfigError(f"RUNFOLD_MODEL_BASE_URL is {url}, and there are no credentials: {advice}")
    return "a script, for want of credentials: set ANTHROPIC_API_KEY to talk to a model"


def _say_where(deployment: Deployment, url: str) -> None:
    console.print(f"API         {url}   (runfold submit 'hello' --watch --api {url})")
    console.print(f"Kafka       export RUNFOLD_BOOTSTRAP={deployment.settings.bootstrap}")
    console.print(f"PostgreSQL  export RUNFOLD_DSN={deployment.settings.dsn}")
    for name, metrics in deployment.metrics_ports.items():
        console.print(f"metrics     {loopback.url(deployment.settings.host, metrics)}/metrics   ({name})")
    console.print(f"logs        {deployment.root}")


def _until_asked_to_stop() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
