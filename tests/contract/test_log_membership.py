"""The contract of `runfold.ports.Membership`: who owns what, and how it changes hands."""

from runfold.log.wire import generation
from tests.contract.log_suite import Seat, World

ALL = frozenset(range(4))


async def test_the_only_member_owns_everything_and_has_a_proof(world: World) -> None:
    seat = await world.seat()
    assert seat.proof == b"" or generation(seat.proof) >= 0, "never the proof of a member that has not joined"
    assert generation(await seat.owning(4)) >= 0
    assert seat.owned == ALL


async def test_two_members_share_the_partitions(world: World) -> None:
    one, other = await world.seat(), await world.seat()
    await one.owning(2)
    await other.owning(2)
    assert one.owned | other.owned == ALL


async def test_a_third_member_takes_no_more_than_its_share(world: World) -> None:
    seats = [await world.seat(), await world.seat()]
    for seat in seats:
        await seat.owning(2)
    before = [seat.owned for seat in seats]
    third = await world.seat()
    await third.owning(1)
    await seats[0].until(lambda: len(seats[0].owned) + len(seats[1].owned) == 3)
    assert all(seat.owned <= old for seat, old in zip(seats, before, strict=True)), "nothing moves that need not"


async def test_a_partition_is_nobody_elses_until_its_member_has_let_it_go(world: World) -> None:
    one = await world.seat()
    await one.owning(4)
    seen: list[tuple[frozenset[int], frozenset[int], frozenset[int]]] = []
    other: list[Seat] = []

    def letting_go(partitions: frozenset[int]) -> None:
        seen.append((partitions, one.membership.owned, other[0].membership.owned if other else frozenset()))

    one.letting_go = letting_go
    other.append(await world.seat())
    await other[0].owning(2)
    (gone, kept, others) = seen[0]
    assert gone == other[0].owned
    assert kept == ALL - gone, "what is being revoked is owned no more"
    assert not gone & others


async def test_who_leaves_lets_everything_go_first_and_the_others_own_it(world: World) -> None:
    one, other = await world.seat(), await world.seat()
    await other.owning(2)
    proof = await one.owning(2)
    mine, gone = one.owned, list[tuple[frozenset[int], bytes]]()
    one.letting_go = lambda partitions: gone.append((partitions, one.membership.proof))
    await one.leave()
    await other.owning(4)
    ((let_go, last_proof),) = gone
    assert let_go == mine
    assert generation(last_proof) >= generation(proof), "its worker still has what it needs to finish"
    assert one.membership.owned == frozenset()
    assert one.membership.proof == b""


async def test_the_proof_changes_with_every_rebalance(world: World) -> None:
    one = await world.seat()
    before = await one.owning(4)
    other = await world.seat()
    await other.owning(2)
    await one.until(lambda: one.proof not in (b"", before))
    assert generation(one.proof) > generation(before)


async def test_who_left_can_join_again(world: World) -> None:
    seat = await world.seat()
    await seat.owning(4)
    await seat.leave()
    await seat.join()
    await seat.owning(4)


async def test_a_failure_while_letting_go_does_not_keep_the_partition(world: World) -> None:
    one = await world.seat()
    await one.owning(4)

    def letting_go(partitions: frozenset[int]) -> None:
        raise RuntimeError("the worker is gone")

    one.letting_go = letting_go
    other = await world.seat()
    await other.owning(2)
    await one.owning(2)
