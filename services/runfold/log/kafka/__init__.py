"""The log on Kafka: the only package that imports ``confluent_kafka``.

Importing it makes no client, so that a fork server may hold it. Whoever forks makes clients afterwards.
"""

from runfold.log.kafka.commands import KafkaCommands
from runfold.log.kafka.live import KafkaLive, KafkaLiveReader
from runfold.log.kafka.log import KafkaLog
from runfold.log.kafka.membership import KafkaMembership
from runfold.log.kafka.tail import KafkaTail
from runfold.log.kafka.topic import check_topic, create_topic

__all__ = [
    "KafkaCommands",
    "KafkaLive",
    "KafkaLiveReader",
    "KafkaLog",
    "KafkaMembership",
    "KafkaTail",
    "check_topic",
    "create_topic",
]
