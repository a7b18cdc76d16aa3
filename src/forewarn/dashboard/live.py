"""Pages that follow what happens: the live part of a page as server-sent events.

Whoever watches the same page as the same person shares its bytes. They are made at most once for each board, and sent
where they differ from what was sent last. When making them takes long, all wait longer for the next ones, so that a
thousand dashboards take a part of the machine and never all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from forewarn.clock import uptime_s
from forewarn.control.context import Context
from forewarn.dashboard.board import Boards

__all__ = ["Live"]

_LEAST_S = 0.5
_SHARE = 4
"""Making pages may take one part in so many of the time."""

_LOOK_S = 5.0
_HEARTBEAT_S = 15.0
_WATCHES_MAX = 5000


@dataclass(slots=True)
class _Shown:
    """A page that somebody watches."""

    make: Callable[[], Awaitable[bytes]]
    watchers: int = 0
    number: int = -1
    content: bytes = b""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Live:
    """All pages that are watched.

    Args:
        context: The service.
        boards: Says whether anything has changed.
    """

    def __init__(self, context: Context, boards: Boards) -> None:
        self._context = context
        self._boards = boards
        self._shown: dict[Hashable, _Shown] = {}
        self._pause_s = _LEAST_S

    @property
    def is_full(self) -> bool:
        """Whether nobody more can watch."""
        return sum(shown.watchers for shown in self._shown.values()) >= _WATCHES_MAX

    async def watch(self, key: Hashable, make: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes]:
        """Server-sent events with the live part of a page, each time that it differs from the last.

        A piece is empty where nothing is to be sent: an occasion to look whether somebody may still watch.

        Args:
            key: Who looks at what; those with the same key see the same.
            make: Makes it.
        """
        shown = self._shown.setdefault(key, _Shown(make))
        shown.watchers += 1
        try:
            async for piece in self._pieces(shown):
                yield piece
        finally:
            shown.watchers -= 1
            if not shown.watchers:
                self._shown.pop(key, None)

    async def _pieces(self, shown: _Shown) -> AsyncGenerator[bytes]:
        sent = b""
        sent_s = uptime_s()
        yield b"retry: 1000\n\n"
        while not self._context.is_stopping.is_set():
            changed = self._context.changed
            content = await self._content(shown)
            if content != sent:
                sent, sent_s = content, uptime_s()
                yield _event(content)
            elif uptime_s() - sent_s > _HEARTBEAT_S:
                sent_s = uptime_s()
                yield b": still here\n\n"
            else:
                yield b""
            await self._wait(changed)

    async def _wait(self, changed: asyncio.Event) -> None:
        """Until something has changed, and then for what the last pages took; or a while, for time passes too."""
        try:
            async with asyncio.timeout(_LOOK_S):
                await changed.wait()
        except TimeoutError:
            return
        if not self._context.is_stopping.is_set():
            await asyncio.sleep(self._pause_s)

    async def _content(self, shown: _Shown) -> bytes:
        async with shown.lock:
            board = await self._boards.current()
            if shown.number != board.number:
                begun_s = uptime_s()
                shown.content = await shown.make()
                took_s = uptime_s() - begun_s
                shown.number = board.number
                self._pause_s = max(_LEAST_S, took_s * _SHARE * len(self._shown))
            return shown.content


def _event(content: bytes) -> bytes:
    return b"".join(b"data: " + line + b"\n" for line in content.splitlines()) + b"\n"
