"""A replica that follows the database leaves the threads of the process to others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from forewarn.engine.follower import Follower
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio


async def test_it_waits_in_a_separate_thread() -> None:
    threads = []
    has_caught_up = asyncio.Event()

    class Store:
        def wait_for_change(self, _timeout_s: float) -> bool:
            threads.append(threading.get_ident())
            return True

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
