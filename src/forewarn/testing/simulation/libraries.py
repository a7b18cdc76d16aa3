"""Work of libraries that a simulation does not need, and that would take more than a third of its time."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

__all__ = ["TLS", "spare_work"]

# Not used, since the simulation has no TLS; made once, because that takes a tenth of a second.
TLS = ssl.create_default_context()

_TICK_S = 1.0


@contextmanager
def spare_work() -> Iterator[None]:
    """Spare such work while the block runs."""
    main_loop, make_context = uvicorn.Server.main_loop, ssl.create_default_context
    uvicorn.Server.main_loop = _tick_each_second  # type: ignore[method-assign,assignment] # it ticks ten times a second
    ssl.create_default_context = lambda: TLS  # type: ignore[assignment,misc] # it reads all certificates of the system
    # httpcore looks for it in all folders, again at each request; None ends the search at once.
    is_missing = "sniffio" not in sys.modules
    if is_missing:
        sys.modules["sniffio"] = None  # type: ignore[assignment] # as documented for `sys.modules`
    try:
        yield
    finally:
        uvicorn.Server.main_loop, ssl.create_default_context = main_loop, make_context  # type: ignore[method-assign]
        if is_missing:
            del sys.modules["sniffio"]


async def _tick_each_second(server: uvicorn.Server) -> None:
    should_exit = await server.on_tick(0)
    while not should_exit:
        await asyncio.sleep(_TICK_S)
        should_exit = await server.on_tick(0)
