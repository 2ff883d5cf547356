"""A tool that writes once, however often it runs.

The call's idempotency key is the primary key of the row it writes. When a worker dies between the write and the record of it, the
next worker runs the tool again under the same key and finds the row there. Both runs give the same answer.

Its table is `TABLE`, to be made once: `psql "$TICKETS_DSN" -c "create table refund (…)"`.
"""

import os

import psycopg

from runfold import Agent, App, ToolContext, ToolError, tool

DSN = os.environ.get("TICKETS_DSN", "postgresql://localhost/tickets")
TABLE = "create table refund (idempotency_key text primary key, ticket text not null, cents int not null)"
INSERT = "insert into refund (idempotency_key, ticket, cents) values (%s, %s, %s) on conflict do nothing"
SELECT = "select ticket, cents from refund where idempotency_key = %s"


@tool(side_effect="write", idempotency="required", timeout=10)
async def refund(ticket: str, cents: int, context: ToolContext) -> str:
    """Refund an amount for a ticket.

    Args:
        ticket: its id, such as T-7
        cents: the amount
    """
    if cents <= 0:
        raise ToolError(f"cents must be above 0, got {cents}")
    async with await psycopg.AsyncConnection.connect(DSN) as connection:
        await connection.execute(INSERT, (context.idempotency_key, ticket, cents))
        row = await (await connection.execute(SELECT, (context.idempotency_key,))).fetchone()
    assert row is not None
    return f"refunded {row[1]} cents for {row[0]}"


app = App([Agent("refunds", model="claude-sonnet-5-5", system="Refund what is asked for.", tools=[refund])])
