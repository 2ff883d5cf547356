"""What tests stand on: a real Kafka and a real PostgreSQL, started once per session and only when a test asks for them.

``python -m runfold.local DIR`` keeps a stack running between sessions: it prints RUNFOLD_TEST_BOOTSTRAP and RUNFOLD_TEST_DSN,
and where these are set the tests use that stack. With ``--train`` every later broker of this machine starts in half the time.
"""

import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

from runfold.config import Settings
from runfold.local import Kafka, LocalStack, Postgres

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class TopicFactory(Protocol):
    """Makes a topic and its dead-letter topic as `runfold topic create` does, with a fresh name, which is returned."""

    def __call__(self, partitions: int = 4) -> str: ...


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the session's broker. Never kill this one: `broker` is for that."""
    if given := os.environ.get("RUNFOLD_TEST_BOOTSTRAP"):
        yield given
        return
    with Kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """DSN of the session's PostgreSQL, whose databases tests make for themselves: see `dsn`."""
    if given := os.environ.get("RUNFOLD_TEST_DSN"):
        yield given
        return
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def stack(bootstrap: str, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Both of the session's servers."""
    with LocalStack(tmp_path_factory.mktemp("stack"), bootstrap=bootstrap, dsn=postgres) as running:
        yield running


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker of the test's own: `kill`, `stop` and `start` it (same port, same data) as the test wants. Costs about 3 s."""
    with Kafka(tmp_path_factory.mktemp("broker")) as own:
        yield own


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """A database of the test's own, empty, dropped at its end."""
    import psycopg  # here, and not for every unit test

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"create database {name}")
    yield postgres.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> "AdminClient":
    """An admin client of the session's broker."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # it outlives its topics, and would say so on stderr


@pytest.fixture
def topic(admin: "AdminClient", bootstrap: str, request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """A factory of topics, deleted at the end of the test: ``name = topic(partitions=4)``."""
    from runfold.log.kafka import create_topic
    from runfold.log.kafka.client import dead_letter_topic

    made: list[str] = []

    def create(partitions: int = 4) -> str:
        test = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:80]
        settings = Settings(bootstrap=bootstrap, topic=f"{test}.{uuid.uuid4().hex[:12]}")
        create_topic(settings, partitions)
        _wait_until_seen(admin, settings.topic, partitions)
        made.extend([settings.topic, dead_letter_topic(settings)])
        return settings.topic

    yield create
    if made:
        admin.delete_topics(made)


def _wait_until_seen(admin: "AdminClient", name: str, partitions: int) -> None:
    """The controller knows a topic before the broker tells of it."""
    deadline = time.monotonic() + 20
    while len(admin.list_topics(name, 10).topics[name].partitions) != partitions:
        assert time.monotonic() < deadline, f"topic {name} was created, but the broker does not tell of it"
