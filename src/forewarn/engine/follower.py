"""Following what other replicas commit: a hint wakes us, the database says what has changed.

Each change has a number, and changes are committed in the order of their numbers. So whoever knows up to which number
it has seen everything can ask for what came after, and misses nothing, however many hints were lost (invariant 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from forewarn.engine.engine import Engine
from forewarn.errors import ForewarnError
from forewarn.store.contract import SharedStore

__all__ = ["Follower"]

_log = structlog.get_logger("forewarn.engine.follower")

_POLL_S = 1.0
_RETRY_S = 0.5


class Follower:
    """Keeps this process's documents those of the database.

    Args:
        store: The database that replicas share.
        engine: Publishes.
        on_news: Called after somebody has committed something.
        poll_s: How often it looks without a hint.
    """

    def __init__(
        self, store: SharedStore, engine: Engine, on_news: Callable[[], None], poll_s: float = _POLL_S
    ) -> None:
        self._store = store
        self._engine = engine
        self._on_news = on_news
        self._poll_s = poll_s
        self.is_behind = False

    async def run(self) -> None:
        """Follow, until cancelled. While the database is away, what is known stays published."""
        with ThreadPoolExecutor(1, thread_name_prefix="forewarn-follow") as thread:
            loop = asyncio.get_running_loop()
            while True:
                try:
                    await loop.run_in_executor(thread, self._store.wait_for_change, self._poll_s)
                    if await self._engine.catch_up():
                        self._on_news()
                except ForewarnError as error:
                    if not self.is_behind:
                        _log.warning("the database cannot be followed, trying again", error=error.message)
                    self.is_behind = True
                    await asyncio.sleep(_RETRY_S)
                except Exception:  # noqa: BLE001 - whoever follows must outlive a bug; the log has the trace
                    _log.exception("following failed, trying again")
                    self.is_behind = True
                    await asyncio.sleep(_RETRY_S)
                else:
                    self.is_behind = False
