"""The log as the settings have it, for every process."""

import logging

from runfold.config import Settings
from runfold.log.codec import Codec, codec_for
from runfold.log.kafka import check_topic

log = logging.getLogger("runfold")


def codec(settings: Settings) -> Codec:
    """With the schema registry of the settings, or without one; see `codec_for`."""
    return codec_for(settings.registry_url, settings.topic)


def check_log(settings: Settings) -> None:
    """Refuse a topic that Runfold cannot rely on, before anything starts. Raises `TopicMismatch`, `LogUnavailable`."""
    log.info("topic %s: %d partitions", settings.topic, check_topic(settings))
