"""Whoever asks for much waits longer, and nobody waits for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.errors import LimitExceeded, StoreUnavailable
from forewarn.util.fair_share import FairBatcher, FairGate, FairQueue, FairSemaphore, QueueLimits

pytestmark = pytest.mark.anyio


def served(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


# The order


async def test_owners_take_turns_whoever_came_first() -> None:
    queue: FairQueue[str] = FairQueue(QueueLimits())
    for number in range(3):
        queue.push("greedy", f"greedy {number}")
    queue.push("a", "a 0")
    queue.push("b", "b 0")
    queue.push("a", "a 1")
    assert served(queue) == ["greedy 0", "a 0", "b 0", "greedy 1", "a 1", "greedy 2"]


async def test_what_comes_later_of_another_owner_goes_before_the_backlog_of_one() -> None:
    queue: FairQueue[str] = FairQueue(QueueLimits())
    for number in range(100):
        queue.push("greedy", f"greedy {number}")
    for _ in range(50):
        queue.pop()
    queue.push("late", "late")
    assert "late" in [queue.pop(), queue.pop()]


async def test_a_light_entry_goes_before_a_heavy_one_and_the_heavy_one_is_served_in_proportion() -> None:
    queue: FairQueue[str] = FairQueue(QueueLimits())
    queue.push("heavy", "heavy", 10)
    for number in range(20):
        queue.push("light", str(number))
    assert served(queue).index("heavy") == 9


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 20)), max_size=60))
async def test_everything_is_served_once_and_in_order_for_each_owner(pushes: list[tuple[str, int]]) -> None:
    queue: FairQueue[str] = FairQueue(QueueLimits())
    for number, (owner, weight) in enumerate(pushes):
        queue.push(owner, f"{owner}{number}", weight)
    found = served(queue)
    for owner in "abcd":
        assert [e for e in found if e[0] == owner] == [f"{o}{n}" for n, (o, _) in enumerate(pushes) if o == owner]
    assert len(found) == len(pushes)
    assert (queue._shares, queue._weight) == ({}, 0)


# How much may wait


async def test_an_owner_over_its_share_is_refused_and_others_are_not() -> None:
    queue: FairQueue[str] = FairQueue(QueueLimits(owner_entries_max=2, owner_weight_max=10))
    queue.push("a", "", 4)
    queue.push("a", "", 4)
    with pytest.raises(LimitExceeded, match="approvals_waiting_per_caller_max"):
        queue.push("a", "")
    queue.push("b", "", 8)
    with pytest.raises(LimitExceeded, match=r"1 approvals of b .*approval_ids_waiting_per_caller_max"):
        queue.push("b", "", 3)
    queue.push("c", "", 11)  # its first may be heavier than its share


async def test_all_together_have_a_limit_of_entries_and_of_weight() -> None:
    few: FairQueue[str] = FairQueue(QueueLimits(entries_max=2))
    for owner in "ab":
        few.push(owner, "")
    with pytest.raises(StoreUnavailable, match="commands_max"):
        few.push("c", "")
    light: FairQueue[str] = FairQueue(QueueLimits(weight_max=10))
    light.push("a", "", 11)
    with pytest.raises(StoreUnavailable, match="approval_ids_waiting_max"):
        light.push("b", "")
    light.pop()
    light.push("b", "")


# Batches


class Work:
    """Carries out when it is let, and remembers what came together."""

    def __init__(self) -> None:
        self.goes: list[list[int]] = []
        self.may = asyncio.Semaphore(0)

    async def carry(self, wishes: Sequence[int]) -> list[int]:
        self.goes.append(list(wishes))
        await self.may.acquire()
        if 13 in wishes:
            raise StoreUnavailable("away")
        return [wish * 2 for wish in wishes]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_waits_is_carried_out_together_and_each_has_its_own_answer() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=3)
    asked = [asyncio.create_task(batcher.submit(number, owner="a")) for number in range(5)]
    await settle()
    asked.append(asyncio.create_task(batcher.submit(5, owner="a")))
    for _ in range(3):
        work.may.release()
    assert await asyncio.gather(*asked) == [0, 2, 4, 6, 8, 10]
    assert work.goes == [[0, 1, 2], [3, 4, 5]]


async def test_a_batch_takes_of_each_owner_in_turn() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=4)
    asked = [asyncio.create_task(batcher.submit(number, owner="greedy")) for number in range(10)]
    await settle()
    asked += [asyncio.create_task(batcher.submit(100 + number, owner=f"vm-{number}")) for number in range(3)]
    await settle()
    for _ in range(4):
        work.may.release()
    await asyncio.gather(*asked)
    assert work.goes[0] == [0, 1, 2, 3]
    assert sorted(work.goes[1]) == [4, 100, 101, 102]


async def test_a_batch_is_limited_by_weight_and_one_that_is_heavier_goes_alone() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=100, weight_max=10)
    weights = {"a": 4, "b": 5, "c": 6, "d": 30, "e": 31}
    asked = [asyncio.create_task(batcher.submit(w, owner=owner, weight=w)) for owner, w in weights.items()]
    for _ in range(5):
        work.may.release()
    await asyncio.gather(*asked)
    assert work.goes == [[4, 5], [6], [30], [31]]


async def test_when_it_fails_all_that_came_together_hear_of_it_and_the_next_do_not() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=2)
    asked = [asyncio.create_task(batcher.submit(number, owner="a")) for number in (1, 13, 3)]
    work.may.release()
    work.may.release()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, StoreUnavailable) for each in found] == [True, True, False]


async def test_a_wish_whose_owner_goes_away_is_carried_out_all_the_same() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=2)
    one, two = (asyncio.create_task(batcher.submit(number, owner="a")) for number in (1, 2))
    await settle()
    one.cancel()
    work.may.release()
    assert await two == 4
    await batcher.drain()
    assert work.goes == [[1, 2]]


async def test_more_than_may_wait_are_refused() -> None:
    work = Work()
    batcher = FairBatcher(work.carry, requests_max=2, limits=QueueLimits(entries_max=1))
    first = asyncio.create_task(batcher.submit(1, owner="a"))
    await settle()
    second = asyncio.create_task(batcher.submit(2, owner="a"))
    await settle()
    with pytest.raises(StoreUnavailable, match="commands_max"):
        await batcher.submit(3, owner="b")
    work.may.release()
    work.may.release()
    assert [await first, await second] == [2, 4]


# Turns


async def test_one_goes_in_each_iteration_and_owners_take_turns() -> None:
    turns = FairGate(QueueLimits())
    went: list[str] = []

    async def go(owner: str) -> None:
        await turns.wait_turn(owner, 1)
        went.append(owner)

    tasks = [asyncio.create_task(go("greedy")) for _ in range(4)]
    tasks += [asyncio.create_task(go(owner)) for owner in "ab"]
    counts = []
    while not all(task.done() for task in tasks):
        counts.append(len(went))
        await asyncio.sleep(0)
    assert went == ["greedy", "a", "b", "greedy", "greedy", "greedy"]
    assert max(after - before for before, after in pairwise(counts)) == 1


async def test_a_turn_that_nobody_waits_for_any_more_is_passed_on() -> None:
    turns = FairGate(QueueLimits())
    one, two = (asyncio.create_task(turns.wait_turn(owner, 1)) for owner in "ab")
    await asyncio.sleep(0)
    one.cancel()
    await two


# Slots


async def test_slots_are_given_to_owners_in_turn() -> None:
    slots = FairSemaphore(2, QueueLimits())
    may = asyncio.Semaphore(0)
    went: list[str] = []

    async def work(owner: str) -> None:
        async with slots.hold_slot(owner):
            went.append(owner)
            await may.acquire()

    tasks = [asyncio.create_task(work("greedy")) for _ in range(6)]
    await settle()
    tasks += [asyncio.create_task(work(owner)) for owner in "ab"]
    await settle()
    assert went == ["greedy"] * 2
    for _ in range(8):
        may.release()
        await settle()
    await asyncio.gather(*tasks)
    assert went == ["greedy"] * 3 + ["a", "b"] + ["greedy"] * 3
    assert slots._free == 2


async def test_a_slot_is_passed_on_by_those_that_fail_or_go_away() -> None:
    slots = FairSemaphore(1, QueueLimits())
    may = asyncio.Event()

    async def work() -> None:
        async with slots.hold_slot("a"):
            await may.wait()
            raise ValueError("fails")

    tasks = [asyncio.create_task(work()) for _ in range(4)]
    await settle()
    tasks[1].cancel()
    await settle()
    may.set()
    tasks[2].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, asyncio.CancelledError, asyncio.CancelledError, ValueError]
    assert slots._free == 1
