"""How long a handler is waited for."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from forewarn.testing.handler_coordinator import HandlerCoordinator

PATIENCE_S = 0.5


async def is_awaited(*, rounds: int, busy_s: float) -> bool:
    """Whether patience lasts for so many rounds of looking, each of which keeps the event loop busy for so long."""
    looked = 0

    async def is_so() -> bool:
        nonlocal looked
        looked += 1
        time.sleep(busy_s)  # noqa: ASYNC251 - as a machine that is busy
        return looked > rounds

    companion = SimpleNamespace(patience_s=PATIENCE_S, is_running=lambda: True)
    return await HandlerCoordinator._wait_until(companion, is_so)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_machine_that_is_busy_does_not_use_up_the_patience() -> None:
    """The handler had no time either: more than the patience passes, of which less counts."""
    assert await is_awaited(rounds=1, busy_s=1.5 * PATIENCE_S)


@pytest.mark.anyio
async def test_a_busy_machine_gives_no_more_than_twice_the_patience() -> None:
    """Or a handler that is really slow would pass there."""
    assert not await is_awaited(rounds=9, busy_s=1.5 * PATIENCE_S)


@pytest.mark.anyio
async def test_patience_ends() -> None:
    async def is_so() -> bool:
        return False

    companion = SimpleNamespace(patience_s=PATIENCE_S, is_running=lambda: True)
    assert not await asyncio.wait_for(HandlerCoordinator._wait_until(companion, is_so), 60)  # type: ignore[arg-type]
