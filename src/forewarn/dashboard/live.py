"""Pages that follow what happens: the live part of a page as server-sent events.

One task makes the pages that are out of date, one after the other. It serves viewers in turn, so that sixty pages of
one tenant delay each other and no others, and it rests as long as it works. Whoever watches the same page with the same
rights shares its bytes. A page is made again when something has happened that its viewer may see, and otherwise every
few seconds, because time passes.
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
"""After a page, the maker rests for this many times as long as the page took."""

_LEAST_S = 0.5
"""Shortest time between two versions of one page."""

_REFRESH_S = 5.0
"""Age at which a page is made again although nothing has happened."""

_LOOK_S = 5.0
_HEARTBEAT_S = 15.0
_WATCHES_MAX = 5000

Viewer = Hashable
"""Those who see the same of each page."""


@dataclass(slots=True, eq=False)
class LivePage:
    """A page that somebody watches.

    Attributes:
        caller: Who watches it, or one of those with the same rights.
        viewer: Whose turn is used when it is made.
        make: Makes its live part.
        watchers: Number of streams that follow it.
        content: Its newest version; empty before the first.
        made_s: Uptime at which that was made; None before the first.
        position: Change up to which ledger entries were taken into account in it.
        changed: Set, and replaced, when there is something for its watchers to look at.
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
        """Have its watchers look."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def next_page(due: list[LivePage], turns: dict[Viewer, int]) -> LivePage:
    """Choose the page to make next: of the viewer who has waited longest, the one that is oldest.

    Args:
        due: Pages that are out of date; at least one.
        turns: Number of the last turn of each viewer who had one.
    """
    return min(due, key=lambda page: (turns.get(page.viewer, 0), page.made_s or 0.0))


class Live:
    """All pages that are watched.

    Args:
        context: The service.
        boards: What is under way.
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
        """Whether nobody more can watch."""
        return sum(page.watchers for page in self._pages.values()) >= _WATCHES_MAX

    async def watch(
        self, caller: Principal, address: str, make: Callable[[], Awaitable[bytes]]
    ) -> AsyncGenerator[bytes]:
        """Server-sent events with the live part of a page, each time that it differs from the last.

        A piece is empty where nothing is to be sent: an occasion to look whether somebody may still watch.

        Args:
            caller: Who watches.
            address: Path and query of the page.
            make: Makes it.
        """
        # What is live on a page names nobody: all operators see the same, and so do all who may only read.
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

    # Making pages

    async def _make_pages(self) -> None:
        """Make what is out of date, as long as anybody watches."""
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
        """Make the page whose turn it is; return how long to rest, or None if no page is out of date."""
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
        page.made_s = now_s  # before it is made: a page that cannot be made waits for its next turn
        board = await self._boards.current()
        position = min(board.position, self._context.entries.position)
        content = await page.make()
        page.position = position
        if content != page.content:
            page.content = content
            page.wake()
        return (uptime_s() - now_s) * _REST

    async def _look(self, now_s: float) -> bool:
        """Find the pages that are out of date; return whether some are that it is too early to make again."""
        await self._boards.current()
        entries = self._context.entries
        await entries.refresh(self._context.changed)
        if self._revocations != entries.revocations:
            self._revocations = entries.revocations
            for page in self._pages.values():
                page.wake()  # some may be watched with a token that was revoked
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
        """Wait until something has changed or somebody new watches; or a while, for time passes too."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (changed, self._joined)]
        try:
            await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


def _event(content: bytes) -> bytes:
    return b"".join(b"data: " + line + b"\n" for line in content.splitlines()) + b"\n"
