"""Wishes that come while others are carried out share the next go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from forewarn.commit import Gathered
from forewarn.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


class Work:
    """Carries out when it is let, and remembers what came together."""

    def __init__(self) -> None:
        self.goes: list[list[int]] = []
        self.may = asyncio.Semaphore(0)

    async def carry(self, wishes: Sequence[int]) -> list[int]:
        self.goes.append(list(wishes))
        await self.may.acquire()
        if 13 in wishes:
            msg = "away"
            raise StoreUnavailable(msg)
        return [wish * 2 for wish in wishes]


async def test_what_waits_is_carried_out_together_and_each_has_its_own_answer() -> None:
    work = Work()
    gathered = Gathered(work.carry, 3, 100)
    asked = [asyncio.create_task(gathered.add(number)) for number in range(5)]
    await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(gathered.add(5)))
    for _ in range(3):
        work.may.release()
    assert await asyncio.gather(*asked) == [0, 2, 4, 6, 8, 10]
    assert work.goes == [[0, 1, 2], [3, 4, 5]]


async def test_when_it_fails_all_that_came_together_hear_of_it_and_the_next_do_not() -> None:
    work = Work()
    gathered = Gathered(work.carry, 2, 100)
    asked = [asyncio.create_task(gathered.add(number)) for number in (1, 13, 3)]
    work.may.release()
    work.may.release()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(each, StoreUnavailable) for each in found] == [True, True, False]


async def test_who_goes_away_is_carried_out_all_the_same() -> None:
    work = Work()
    gathered = Gathered(work.carry, 2, 100)
    one, two = (asyncio.create_task(gathered.add(number)) for number in (1, 2))
    await asyncio.sleep(0.01)
    one.cancel()
    work.may.release()
    assert await two == 4
    await gathered.drain()
    assert work.goes == [[1, 2]]


async def test_more_than_may_wait_are_refused() -> None:
    work = Work()
    gathered = Gathered(work.carry, 2, 1)
    first = asyncio.create_task(gathered.add(1))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(gathered.add(2))
    await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable, match="commands_max"):
        await gathered.add(3)
    work.may.release()
    work.may.release()
    assert [await first, await second] == [2, 4]
