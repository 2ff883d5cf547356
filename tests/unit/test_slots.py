"""How many calls may run at the same time, and who is next (`runfold.worker.slots`)."""

import asyncio
from collections.abc import Callable

from runfold.worker.slots import Slots


def _nobody() -> None:
    raise AssertionError("nobody waits here")


class Customer:
    """Takes ``wanted`` slots, asking again when it is poked."""

    def __init__(self, slots: Slots, name: str, wanted: int = 1) -> None:
        self.slots, self.name, self.wanted, self.held, self.pokes = slots, name, wanted, 0, 0

    def ask(self) -> "Customer":
        while self.held < self.wanted and self.slots.take(self.name, self.poked):
            self.held += 1
        return self

    def poked(self) -> None:
        self.pokes += 1
        self.ask()

    def give(self) -> None:
        self.held -= 1
        self.slots.give()


async def settle() -> None:
    """Let the loop run what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_there_are_as_many_as_said() -> None:
    slots = Slots(2)
    assert [slots.take(name, _nobody) for name in "ab"] == [True, True]
    assert not slots.take("c", lambda: None)


async def test_whoever_waits_is_poked_once_a_slot_is_free() -> None:
    slots = Slots(1)
    first, second = Customer(slots, "first").ask(), Customer(slots, "second").ask()
    await settle()
    assert (second.held, second.pokes) == (0, 0)
    first.give()
    await settle()
    assert (second.held, second.pokes) == (1, 1)


async def test_first_come_first_served_also_for_whoever_gives_one_back_and_wants_the_next() -> None:
    """A run with many tool calls in a turn must not keep the others from theirs."""
    slots = Slots(1)
    greedy, patient = Customer(slots, "greedy", wanted=1).ask(), Customer(slots, "patient").ask()
    greedy.give()
    greedy.ask()  # in the same breath
    await settle()
    assert (greedy.held, patient.held) == (0, 1)
    patient.give()
    await settle()
    assert greedy.held == 1, "it kept its place in the queue"


async def test_whoever_asks_again_keeps_its_place() -> None:
    slots = Slots(1)
    holder = Customer(slots, "holder").ask()
    waiting = [Customer(slots, name).ask() for name in "abc"]
    waiting[0].ask()
    for next_one in waiting:
        holder.give()
        await settle()
        assert next_one.held == 1
        holder = next_one


async def test_one_that_no_longer_wants_it_does_not_keep_it_from_the_next() -> None:
    slots = Slots(1)
    holder = Customer(slots, "holder").ask()
    gone, waiting = Customer(slots, "gone").ask(), Customer(slots, "waiting").ask()
    gone.wanted = 0
    holder.give()
    await settle()
    assert (gone.pokes, gone.held, waiting.held) == (1, 0, 1)


async def test_one_poke_may_take_several() -> None:
    slots = Slots(3)
    holder = Customer(slots, "holder", wanted=3).ask()
    turn, other = Customer(slots, "turn", wanted=2).ask(), Customer(slots, "other", wanted=2).ask()
    for _ in range(3):
        holder.give()
    await settle()
    assert (turn.held, other.held) == (2, 1)


async def test_none_is_lost_in_any_order_of_taking_and_giving() -> None:
    slots = Slots(4)
    customers = [Customer(slots, f"{n}", wanted=1 + n % 3).ask() for n in range(20)]
    for _ in range(40):
        for customer in customers:
            if customer.held:
                customer.wanted -= 1
                customer.give()
        await settle()
    assert all((customer.wanted, customer.held) == (0, 0) for customer in customers)
    assert [slots.take(f"last {n}", _nobody) for n in range(4)] == [True] * 4
    never: Callable[[], None] = _nobody
    assert not slots.take("one too many", never)
