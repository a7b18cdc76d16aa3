"""Publication of what other replicas commit: a hint wakes the follower, the database holds the changes.

Changes are numbered and committed in the order of their numbers. So a replica that knows the last number up to which
it has seen everything can ask for what came after, and misses nothing, however many hints are lost (invariant 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from forewarn.engine.transaction import Committer
from forewarn.errors import ForewarnError
from forewarn.store.contract import SharedStore

__all__ = ["Follower"]

_log = structlog.get_logger("forewarn.engine.follower")

# A lost notification delays a change by a second at most (ADR 14).
_POLL_S = 1.0
_RETRY_S = 0.5


class Follower:
    """Keeps the documents of this process equal to those in the database.

    Args:
        store: Database that the replicas share.
        committer: Publishes the changes.
        on_remote_change: Called after another replica has committed something.
    """

    def __init__(self, store: SharedStore, committer: Committer, on_remote_change: Callable[[], None]) -> None:
        self._store = store
        self._committer = committer
        self._on_remote_change = on_remote_change
        self.is_behind = False

    async def run(self) -> None:
        """Follow until cancelled. While the database is unreachable, what is known stays published."""
        # A separate thread, since it is blocked in the wait nearly all the time.
        with ThreadPoolExecutor(1, thread_name_prefix="forewarn-follow") as thread:
            loop = asyncio.get_running_loop()
            read_s = loop.time()
            while True:
                try:
                    announced = await loop.run_in_executor(thread, self._store.wait_for_change, _POLL_S)
                    # Most hints are for this replica's own commits. While they come, one of another replica may be
                    # lost too, so the changes are read each second in any case.
                    is_known = announced is not None and self._committer.is_published(announced)
                    if is_known and loop.time() - read_s < _POLL_S:
                        continue
                    read_s = loop.time()
                    if await self._committer.catch_up():
                        self._on_remote_change()
                except ForewarnError as error:
                    if not self.is_behind:
                        _log.warning("cannot follow the database; retrying", error=error.message)
                except Exception:  # noqa: BLE001 - the follower must survive a bug; the log has the trace
                    _log.exception("following the database failed; retrying")
                else:
                    self.is_behind = False
                    continue
                self.is_behind = True
                await asyncio.sleep(_RETRY_S)
