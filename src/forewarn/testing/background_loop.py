"""One event loop on one thread for all services of tests; started by the first, and ended with the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run_coroutine", "run_function"]

T = TypeVar("T")

_TIMEOUT_S = 120.0
_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def _get_loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if not _loops:
            loop = asyncio.new_event_loop()
            # A daemon thread: a service that a test left open must not keep the test run from ending.
            threading.Thread(target=loop.run_forever, name="forewarn-testing", daemon=True).start()
            _loops.append(loop)
        return _loops[0]


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on that loop, and wait for its result.

    Raises:
        TimeoutError: It takes longer than two minutes.
    """
    # The limit turns a deadlock in the service into a failing test instead of a test run that hangs.
    return asyncio.run_coroutine_threadsafe(work, _get_loop()).result(_TIMEOUT_S)


def run_function(function: Callable[[], T]) -> T:
    """Call a function on that loop, which owns the objects it reads."""

    async def work() -> T:
        return function()

    return run_coroutine(work())
