"""Look-up of tokens by digest: those that are asked for at the same time are read together.

After a restart, thousands of hosts connect at once, and each request begins with its token. A read costs a transaction
on another thread, which is several times what one more token in the same read costs.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from operator import methodcaller

from forewarn.core.access import Token
from forewarn.engine.transaction import Committer
from forewarn.errors import ForewarnError

__all__ = ["TokenLookup"]

_BATCH_MAX = 256
"""Maximum number of tokens in one read."""


class TokenLookup:
    """Looks up tokens by digest, one read at a time.

    A read begins after the request for each of its tokens, so it finds every token that was created before, and none
    that was revoked before.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        # The context of the service: the task that reads outlives the request that starts it.
        self._context = copy_context()
        self._waiting: list[tuple[str, asyncio.Future[Token | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def find(self, digest: str) -> Token | None:
        """Return the token with this digest; None if there is none.

        Raises:
            ForewarnError: The store cannot be read.
        """
        found: asyncio.Future[Token | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((digest, found))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_batches(), context=self._context)
        return await found

    async def _read_batches(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
            digests = {digest for digest, _ in batch}
            try:
                tokens: dict[str, Token] = await self._committer.read(methodcaller("find_tokens_by_digest", digests))
            except ForewarnError as error:
                for _, found in batch:
                    if not found.done():
                        found.set_exception(error)
                continue
            except BaseException:
                # A bug, or the loop ends: no caller may wait for this read for ever.
                for _, found in (*batch, *self._waiting):
                    found.cancel()
                self._waiting = []
                raise
            for digest, found in batch:
                if not found.done():  # the caller may have gone
                    found.set_result(tokens.get(digest))
