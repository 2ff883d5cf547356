"""The agent of `runfold demo`, written as a user would: one tool with a side effect that must happen once.

``escalate`` honours its idempotency key: the insert and the key are one statement. It is slow on purpose, as other people's APIs
are, so that there is time to kill its worker between the effect and the answer.
"""

import os
import time

import psycopg

from runfold import Agent, ToolContext, tool

SLOW_SECONDS = 2.5

TABLES = """
create table if not exists demo_execution (key text not null, pid integer not null);
create table if not exists demo_escalation (key text primary key, ticket text not null);
truncate demo_execution, demo_escalation;
"""


@tool(side_effect="write", idempotency="required")
def escalate(ticket: str, context: ToolContext) -> str:
    """Escalate an overdue ticket to the people on duty.

    Args:
        ticket: The ticket's number.
    """
    with psycopg.connect(os.environ["RUNFOLD_DSN"], autocommit=True) as connection:
        connection.execute(
            "insert into demo_escalation (key, ticket) values (%s, %s) on conflict (key) do nothing",
            [context.idempotency_key, ticket],
        )
        connection.execute("insert into demo_execution (key, pid) values (%s, %s)", [context.idempotency_key, os.getpid()])
    time.sleep(SLOW_SECONDS)
    return f"{ticket} was escalated"


agent = Agent("default", model="claude-sonnet-5-5", system="You look after the tickets of acme.", tools=[escalate])


# ---- what the demo looks at


def prepare(dsn: str) -> None:
    """Make the tables, empty."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES)


def executions(dsn: str) -> list[tuple[str, int]]:
    """(idempotency key, pid) of each time the tool ran."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select key, pid from demo_execution").fetchall()


def effects(dsn: str) -> list[tuple[str, str]]:
    """(idempotency key, ticket) of each escalation that exists."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("select key, ticket from demo_escalation").fetchall()
