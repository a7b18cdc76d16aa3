"""A replica that follows the database leaves the threads of the process to others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from forewarn.engine import follower
from forewarn.engine.follower import Follower
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio


async def test_it_waits_in_a_separate_thread() -> None:
    threads = []
    has_caught_up = asyncio.Event()

    class Store:
        def wait_for_change(self, _timeout_s: float) -> int | None:
            threads.append(threading.get_ident())
            return None

    class Committer:
        async def catch_up(self) -> bool:
            has_caught_up.set()
            return False

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    thread_of_others = await asyncio.to_thread(threading.get_ident)
    following = asyncio.create_task(Follower(cast("Any", Store()), cast("Any", Committer()), lambda: None).run())
    await asyncio.wait_for(has_caught_up.wait(), GUARD_S)
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert threads[0] != thread_of_others


@pytest.mark.parametrize(
    ("announced", "position", "expected"), [(7, 7, []), (7, 8, []), (7, 6, ["read"]), (None, 7, ["read"])]
)
async def test_it_reads_the_changes_unless_they_are_published_already(
    announced: int | None, position: int, expected: list[str]
) -> None:
    """Invariant 9. The database announces a replica's own commits to it too."""
    done: list[str] = []
    has_waited_again = asyncio.Event()
    waits = iter([announced])

    class Store:
        def wait_for_change(self, _timeout_s: float) -> int | None:
            try:
                return next(waits)
            except StopIteration:
                loop.call_soon_threadsafe(has_waited_again.set)
                return position

    class Committer:
        async def catch_up(self) -> bool:
            done.append("read")
            return False

        def is_published(self, number: int) -> bool:
            return number <= position

    loop = asyncio.get_running_loop()
    following = asyncio.create_task(Follower(cast("Any", Store()), cast("Any", Committer()), lambda: None).run())
    await asyncio.wait_for(has_waited_again.wait(), GUARD_S)
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert done == expected


async def test_it_reads_the_changes_each_second_whatever_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 9. While a replica commits all the time, the hint of another one may be lost."""
    monkeypatch.setattr(follower, "_POLL_S", 0.01)
    has_read = asyncio.Event()

    class Store:
        def wait_for_change(self, _timeout_s: float) -> int | None:
            return 7

    class Committer:
        async def catch_up(self) -> bool:
            has_read.set()
            return False

        def is_published(self, _number: int) -> bool:
            return True

    following = asyncio.create_task(Follower(cast("Any", Store()), cast("Any", Committer()), lambda: None).run())
    assert await asyncio.wait_for(has_read.wait(), GUARD_S), "it never read the changes"
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
