"""A topic that Runfold cannot rely on is refused, with what was found and what is wanted."""

import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from typer.testing import CliRunner

from runfold.cli.app import app
from runfold.config import Settings
from runfold.core.errors import LogUnavailable, TopicMismatch
from runfold.log.kafka import check_topic, create_topic, topic


@pytest.fixture
def settings(bootstrap: str) -> Settings:
    return Settings(bootstrap=bootstrap, topic=f"topic-{uuid4().hex[:8]}")


@pytest.fixture
def alter(settings: Settings, admin: AdminClient) -> Callable[[str, str], None]:
    """Change one setting of the topic, as somebody may."""

    def alter(name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, settings.topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)

    return alter


def test_what_create_makes_check_accepts(settings: Settings) -> None:
    assert create_topic(settings, 3, 1) is True
    assert check_topic(settings) == 3


def test_creating_again_changes_nothing(settings: Settings) -> None:
    create_topic(settings, 3, 1)
    assert create_topic(settings, 5, 1) is False
    assert check_topic(settings) == 3


def test_the_side_topic_of_live_text_forgets_and_is_not_needed(settings: Settings, admin: AdminClient) -> None:
    create_topic(settings, 3, 1)
    side = ConfigResource(ResourceType.TOPIC, f"{settings.topic}.live")
    config = admin.describe_configs([side])[side].result(20)
    assert (config["cleanup.policy"].value, config["retention.ms"].value) == ("delete", "600000")
    assert int(config["segment.ms"].value) < 600_000, "only whole segments are deleted"
    admin.delete_topics([side.name])[side.name].result(20)
    assert check_topic(settings) == 3
    assert create_topic(settings, 3, 1) is False
    assert len(admin.list_topics(side.name, 10).topics[side.name].partitions) == 3, "a deployment that had none gets one"


def test_a_number_of_partitions_that_the_topic_does_not_have_is_no_success(settings: Settings) -> None:
    create_topic(settings, 3, 1)
    words = ["topic", "create", "--bootstrap", settings.bootstrap, "--topic", settings.topic]
    assert CliRunner().invoke(app, words).stdout == f"{settings.topic}: was there already: ok, 3 partitions\n"
    assert CliRunner().invoke(app, [*words, "--partitions", "3"]).exit_code == 0
    told = CliRunner().invoke(app, [*words, "--partitions", "12"])
    assert "expected 12 partitions, it is there already with 3" in str(told.exception)


def test_a_topic_that_does_not_exist_is_refused(settings: Settings) -> None:
    with pytest.raises(TopicMismatch, match="does not exist: create it with `runfold topic create`"):
        check_topic(settings)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("cleanup.policy", "compact", "cleanup.policy is compact, wanted delete"),
        ("cleanup.policy", "compact,delete", "cleanup.policy is compact,delete, wanted delete"),
        ("retention.ms", "60000", r"retention.ms is 60000, wanted -1 \(unlimited\)"),
        ("retention.bytes", "1000000", "retention.bytes is 1000000, wanted -1"),
        ("message.timestamp.type", "CreateTime", "message.timestamp.type is CreateTime, wanted LogAppendTime"),
        ("max.message.bytes", "1048588", "max.message.bytes is 1048588, wanted at least 2097152"),
    ],
)
def test_a_topic_that_forgets_or_lies_is_refused(
    settings: Settings, alter: Callable[[str, str], None], name: str, value: str, wanted: str
) -> None:
    create_topic(settings, 1, 1)
    alter(name, value)
    with pytest.raises(TopicMismatch, match=wanted):
        check_topic(settings)


def test_finite_retention_is_accepted_when_it_is_long_enough(settings: Settings, alter: Callable[[str, str], None]) -> None:
    create_topic(settings, 1, 1)
    alter("retention.ms", "60000")
    assert check_topic(settings.model_copy(update={"min_retention_ms": 60_000})) == 1
    with pytest.raises(TopicMismatch, match="wanted -1 or at least 60001"):
        check_topic(settings.model_copy(update={"min_retention_ms": 60_001}))


def test_a_topic_whose_partitions_were_added_to_is_refused(settings: Settings, admin: AdminClient) -> None:
    create_topic(settings, 2, 1)
    admin.create_partitions([NewPartitions(settings.topic, 3)])[settings.topic].result(20)
    deadline = time.monotonic() + 20
    while len(admin.list_topics(settings.topic).topics[settings.topic].partitions) < 3:
        assert time.monotonic() < deadline
    with pytest.raises(TopicMismatch, match=r"has 3 partitions, .*\.dead has 2"):
        check_topic(settings)


def test_a_broker_that_is_away_is_not_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "ADMIN_SECONDS", 1.0)
    with pytest.raises(LogUnavailable):
        check_topic(Settings(bootstrap="127.0.0.1:1"))
