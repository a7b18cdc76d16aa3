from __future__ import annotations

import asyncio

import pytest

from forewarn.util.tasks import cancel_tasks

pytestmark = pytest.mark.anyio


async def test_cancelled_tasks_have_ended_whatever_they_raise() -> None:
    cleaned = []

    async def clean_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def fail() -> None:
        raise ValueError("it failed before")

    tasks = [asyncio.create_task(clean_up()), asyncio.create_task(fail())]
    await asyncio.sleep(0)
    await cancel_tasks(*tasks)
    assert cleaned == [True]
    assert all(task.done() for task in tasks)
    await cancel_tasks()
