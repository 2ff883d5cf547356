"""A model that says what you write here: try your own tools with `runfold dev`, without a key (see docs/tools.md)."""

import asyncio
import sys

from runfold.testing import FakeMessagesApi, Script

SCRIPT = Script().then_tool_use("toolu_1", "list_tickets", {"customer": "acme", "status": "overdue"}).then_text("Only T-7.")


async def serve(port: int) -> None:
    async with FakeMessagesApi(SCRIPT, port=port) as api:
        print(api.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
