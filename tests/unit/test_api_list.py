"""GET /api/runs: filters and keyset pages."""

import asyncio
from typing import Any

import pytest

from tests.unit.api_client import World, at, problem, world


async def test_pages_show_every_run_once_newest_first_while_new_ones_arrive() -> None:
    async with world() as here:
        ids = await _runs(here, 7)
        seen, cursor = [], None
        while True:
            page = await _list(here, limit=3, **({"cursor": cursor} if cursor else {}))
            assert len(page["runs"]) <= 3
            seen += [run["id"] for run in page["runs"]]
            await _runs(here, 1, start=100 + len(seen))
            if (cursor := page["nextCursor"]) is None:
                break
        assert seen == ids[::-1]


async def test_runs_of_one_moment_are_neither_lost_nor_repeated() -> None:
    async with world() as here:
        ids = await _runs(here, 5, apart=0)
        first = await _list(here, limit=2)
        second = await _list(here, limit=5, cursor=first["nextCursor"])
        assert sorted(run["id"] for run in first["runs"] + second["runs"]) == sorted(ids)
        assert second["nextCursor"] is None


async def test_filters_are_exact_and_together() -> None:
    async with world() as here:
        await here.submit(agent="a", tenant="x")
        wanted = await here.submit(agent="a", tenant="y%_\\")
        await here.submit(agent="b", tenant="y%_\\")
        await here.projection.catch_up()
        page = await _list(here, agent="a", tenant="y%_\\", status="QUEUED")
        assert [run["id"] for run in page["runs"]] == [wanted]
        assert "input" not in page["runs"][0], "a list of inputs could be huge"
        assert (await _list(here, tenant="y"))["runs"] == []


BAD = [
    ("status", "' OR '1'='1"),
    ("status", "queued"),
    ("status", ""),
    ("orderBy", "createdAt;drop table run--"),
    ("orderBy", "(select pg_sleep(5))"),
    ("metadata'", "x"),
    ("limit", "-1"),
    ("limit", "0"),
    ("limit", "201"),
    ("limit", "1e9"),
    ("limit", "abc"),
    ("limit", ""),
    ("agent", ""),
    ("agent", "a\0b"),
    ("tenant", "x" * 201),
    ("cursor", "garbage"),
    ("cursor", "' OR 1=1"),
    ("cursor", "AAAA"),
    ("cursor", "ä"),
    ("cursor", "OTk5OTk5OTk5OTk5OTk5OTkgM2IyNDExMDEtZTJiYi00MjU1LThjYWYtNDEzNmM1NjZhOTYy" * 3),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda text: ascii(text)[:25])
async def test_unknown_fields_values_and_limits_are_refused(name: str, value: str) -> None:
    """U06.1, U05: nothing of it reaches SQL."""
    async with world() as here:
        async with asyncio.timeout(1):
            problem(await here.client.get("/api/runs", params={name: value}), 422, name)
        assert not here.projection.asked


async def test_a_parameter_given_twice_is_refused() -> None:
    async with world() as here:
        problem(await here.client.get("/api/runs?agent=a&agent=b"), 422, "agent")
        problem(await here.client.get("/api/runs?" + "&".join(f"p{n}" for n in range(5000))), 422)


async def test_the_list_is_503_while_the_projection_is_away() -> None:
    async with world() as here:
        here.projection.up = False
        assert problem(await here.client.get("/api/runs"), 503)["code"] == "projection_unavailable"


async def _runs(here: World, count: int, start: int = 0, apart: int = 1) -> list[str]:
    ids = [await here.submit() for _ in range(count)]
    await here.projection.catch_up()
    for n, run_id in enumerate(ids):
        here.projection.rows[run_id]["requested_at"] = at(start + n * apart)
    return ids


async def _list(here: World, **params: Any) -> Any:
    answer = await here.client.get("/api/runs", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()
