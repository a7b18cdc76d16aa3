"""Live pages: the changing part of a page as server-sent events.

One task renders the outdated pages one after the other. It serves viewers in turn, so that sixty pages of one tenant
delay each other but no one else's, and it rests as long as it works. Viewers of the same page with the same rights
share its bytes. A page is rendered again when something has happened that its viewer may see, and otherwise every few
seconds, since it also depends on the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field

import structlog

from forewarn.clock import uptime_s
from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.core.selection import EVERYTHING
from forewarn.dashboard.board import Boards
from forewarn.errors import ForewarnError

__all__ = ["Live", "LivePage", "next_page"]

_log = structlog.get_logger("forewarn.dashboard")

_REST = 1.0
"""Ratio of the rest after a page to the time that the page took."""

_LEAST_S = 0.5
"""Minimum time between two versions of one page."""

_REFRESH_S = 5.0
"""Age at which a page is rendered again even if nothing has happened."""

_LOOK_S = 5.0
_HEARTBEAT_S = 15.0
_WATCHES_MAX = 5000

Viewer = Hashable
"""Key of a group of callers who see the same version of each page."""


@dataclass(slots=True, eq=False)
class LivePage:
    """A page with at least one watcher.

    Attributes:
        caller: One of its watchers; all have the same rights.
        viewer: Group of callers whose turn rendering it uses.
        make: Renders its live part.
        watchers: Number of streams that follow it.
        content: Newest version; empty before the first.
        made_s: Uptime at which its last rendering began; None before the first.
        position: Sequence number up to which it takes audit log entries into account.
        changed: Set, and replaced, when its watchers have something to check.
    """

    caller: Principal
    viewer: Viewer
    make: Callable[[], Awaitable[bytes]]
    watchers: int = 0
    content: bytes = b""
    made_s: float | None = None
    position: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Wake the watchers of the page."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def next_page(due: list[LivePage], turns: dict[Viewer, int]) -> LivePage:
    """Return the page to render next: the oldest one of the viewer who has waited longest.

    Args:
        due: Outdated pages; at least one.
        turns: Number of the last turn of each viewer that has had one.
    """
    return min(due, key=lambda page: (turns.get(page.viewer, 0), page.made_s or 0.0))


class Live:
    """Renders and streams all pages that are watched.

    Args:
        context: Parts of the service.
        boards: Source of the current board.
    """

    def __init__(self, context: Context, boards: Boards) -> None:
        self._context = context
        self._boards = boards
        self._pages: dict[Hashable, LivePage] = {}
        self._turns: dict[Viewer, int] = {}
        self._turn = 0
        self._due: list[LivePage] = []
        self._looked_s = 0.0
        self._joined = asyncio.Event()
        self._maker: asyncio.Task[None] | None = None
        self._revocations = context.entries.revocations

    @property
    def is_full(self) -> bool:
        """True if no further watcher is accepted."""
        return sum(page.watchers for page in self._pages.values()) >= _WATCHES_MAX

    async def watch(
        self, caller: Principal, address: str, make: Callable[[], Awaitable[bytes]]
    ) -> AsyncGenerator[bytes]:
        """Yield the live part of a page as server-sent events, each time it has changed.

        Empty pieces are yielded regularly, so that the consumer can check whether the caller may still watch.

        Args:
            caller: Caller who watches.
            address: Path and query of the page.
            make: Renders the live part.
        """
        # The live part of a page does not name the viewer, so all operators see the same, and so do all read-only
        # callers.
        viewer: Viewer = caller.role if caller.owned is None else caller
        page = self._pages.setdefault((viewer, address), LivePage(caller, viewer, make))
        page.watchers += 1
        self._joined.set()
        if self._maker is None or self._maker.done():
            self._maker = asyncio.create_task(self._make_pages())
        try:
            async for piece in self._pieces(page):
                yield piece
        finally:
            page.watchers -= 1
            if not page.watchers:
                self._pages.pop((viewer, address), None)

    async def _pieces(self, page: LivePage) -> AsyncGenerator[bytes]:
        sent = b""
        sent_s = uptime_s()
        yield b"retry: 1000\n\n"
        while not self._context.is_stopping.is_set():
            changed = page.changed
            if page.content != sent:  # a slow watcher skips the versions in between
                sent, sent_s = page.content, uptime_s()
                yield _event(sent)
            elif uptime_s() - sent_s > _HEARTBEAT_S:
                sent_s = uptime_s()
                yield b": still here\n\n"
            else:
                yield b""
            try:
                async with asyncio.timeout(_LOOK_S):
                    await changed.wait()
            except TimeoutError:
                continue

    # Rendering

    async def _make_pages(self) -> None:
        """Render outdated pages while there are watchers."""
        while self._pages and not self._context.is_stopping.is_set():
            changed = self._context.changed
            self._joined.clear()
            try:
                rest_s = await self._make_one()
            except ForewarnError as error:
                _log.warning("a live page could not be made", error=error.message)
                rest_s = _LEAST_S
            except Exception:  # noqa: BLE001 - one page must not end all others; the log has the trace
                _log.exception("a live page could not be made")
                rest_s = _LEAST_S
            if rest_s is None:
                await self._wait(changed)
            else:
                await asyncio.sleep(rest_s)
        for page in self._pages.values():
            page.wake()

    async def _make_one(self) -> float | None:
        """Render the page whose turn it is; return the seconds to rest, or None if no page is outdated."""
        now_s = uptime_s()
        if not self._due or now_s - self._looked_s >= _LEAST_S:
            is_waiting = await self._look(now_s)
            if not self._due:
                return _LEAST_S if is_waiting else None
        page = next_page(self._due, self._turns)
        self._due.remove(page)
        if not page.watchers:
            return 0.0
        self._turn += 1
        self._turns[page.viewer] = self._turn
        page.made_s = now_s  # set before rendering, so that a page that fails waits for its next turn
        board = await self._boards.current()
        position = min(board.position, self._context.entries.position)
        content = await page.make()
        page.position = position
        if content != page.content:
            page.content = content
            page.wake()
        return (uptime_s() - now_s) * _REST

    async def _look(self, now_s: float) -> bool:
        """Find the pages that are due; return True if any page (due or not yet) or the board is out of date."""
        await self._boards.current()
        entries = self._context.entries
        await entries.refresh(self._context.changed)
        if self._revocations != entries.revocations:
            self._revocations = entries.revocations
            for page in self._pages.values():
                page.wake()  # streams check whether their token is among the revoked ones
        outdated = [page for page in self._pages.values() if self._is_outdated(page, now_s)]
        self._due = [page for page in outdated if page.made_s is None or now_s - page.made_s >= _LEAST_S]
        viewers = {page.viewer for page in self._pages.values()}
        self._turns = {viewer: turn for viewer, turn in self._turns.items() if viewer in viewers}
        self._looked_s = now_s
        return bool(outdated) or not self._boards.is_current

    def _is_outdated(self, page: LivePage, now_s: float) -> bool:
        if page.made_s is None or now_s - page.made_s >= _REFRESH_S:
            return True
        entries = self._context.entries
        news = entries.since(page.position)
        return news is None or any(each.is_for(page.caller, EVERYTHING, entries.find_vm) for each in news)

    async def _wait(self, changed: asyncio.Event) -> None:
        """Wait for a change, a new watcher or a timeout; pages also become outdated by age."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (changed, self._joined)]
        try:
            await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


def _event(content: bytes) -> bytes:
    return b"".join(b"data: " + line + b"\n" for line in content.splitlines()) + b"\n"
