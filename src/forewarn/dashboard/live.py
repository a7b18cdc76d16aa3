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
from forewarn.control.board import BoardCache
from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.core.selection import EVERYTHING
from forewarn.errors import ForewarnError

__all__ = ["LivePage", "LivePages", "next_page"]

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
        render: Renders its live part.
        watchers: Number of streams that follow it.
        content: Newest version; empty before the first.
        rendered_s: Uptime at which its last rendering began; None before the first.
        position: Sequence number up to which it takes audit log entries into account.
        changed: Set, and replaced, when its watchers have something to check.
    """

    caller: Principal
    viewer: Viewer
    render: Callable[[], Awaitable[bytes]]
    watchers: int = 0
    content: bytes = b""
    rendered_s: float | None = None
    position: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Wake the watchers of the page."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def next_page(due: list[LivePage], turns: dict[Viewer, int]) -> LivePage:
    """Return the page to render next: the oldest due one of the viewer whose last turn is the longest ago."""
    return min(due, key=lambda page: (turns.get(page.viewer, 0), page.rendered_s or 0.0))


class LivePages:
    """Renders and streams all pages that are watched."""

    def __init__(self, context: Context, boards: BoardCache) -> None:
        self._context = context
        self._boards = boards
        self._pages: dict[Hashable, LivePage] = {}
        self._turns: dict[Viewer, int] = {}
        self._turn = 0
        self._due: list[LivePage] = []
        self._searched_s = 0.0
        self._watcher_joined = asyncio.Event()
        self._render_task: asyncio.Task[None] | None = None
        self._revocations = context.entry_broadcast.revocation_count

    @property
    def is_full(self) -> bool:
        """True if no further watcher is accepted."""
        return sum(page.watchers for page in self._pages.values()) >= _WATCHES_MAX

    async def watch(
        self, caller: Principal, address: str, render: Callable[[], Awaitable[bytes]]
    ) -> AsyncGenerator[bytes]:
        """Yield the live part of a page as server-sent events, each time it has changed.

        Empty pieces are yielded regularly, so that the consumer can check whether the caller may still watch. The
        address is the path and query of the page.
        """
        # The live part of a page does not name the viewer, so all operators see the same, and so do all read-only
        # callers.
        viewer: Viewer = caller.role if caller.ownership is None else caller
        page = self._pages.setdefault((viewer, address), LivePage(caller, viewer, render))
        page.watchers += 1
        self._watcher_joined.set()
        if self._render_task is None or self._render_task.done():
            self._render_task = asyncio.create_task(self._render_pages())
        try:
            async for piece in self._stream_events(page):
                yield piece
        finally:
            page.watchers -= 1
            if not page.watchers:
                self._pages.pop((viewer, address), None)

    async def _stream_events(self, page: LivePage) -> AsyncGenerator[bytes]:
        sent = b""
        sent_s = uptime_s()
        yield b"retry: 1000\n\n"
        while not self._context.is_stopping.is_set():
            changed = page.changed
            if page.content != sent:  # a slow watcher skips the versions in between
                sent, sent_s = page.content, uptime_s()
                yield _encode_event(sent)
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

    async def _render_pages(self) -> None:
        """Render outdated pages while there are watchers."""
        while self._pages and not self._context.is_stopping.is_set():
            # Both before looking for outdated pages: a change or watcher that arrives meanwhile ends the wait at once.
            changed = self._context.changed
            self._watcher_joined.clear()
            try:
                rest_s = await self._render_next()
            except ForewarnError as error:
                _log.warning("a live page could not be made", error=error.message)
                rest_s = _LEAST_S
            except Exception:  # noqa: BLE001 - one page must not end all others; the log has the trace
                _log.exception("a live page could not be made")
                rest_s = _LEAST_S
            if rest_s is None:
                await self._wait_for_work(changed)
            else:
                await asyncio.sleep(rest_s)
        for page in self._pages.values():
            page.wake()

    async def _render_next(self) -> float | None:
        """Render the page whose turn it is; return the seconds to rest, or None if no page is outdated."""
        now_s = uptime_s()
        if not self._due or now_s - self._searched_s >= _LEAST_S:
            is_waiting = await self._find_due_pages(now_s)
            if not self._due:
                return _LEAST_S if is_waiting else None
        page = next_page(self._due, self._turns)
        self._due.remove(page)
        # The last watcher may have left since the page was found due.
        if not page.watchers:
            return 0.0
        self._turn += 1
        self._turns[page.viewer] = self._turn
        page.rendered_s = now_s  # set before rendering, so that a page that fails waits for its next turn
        board = await self._boards.get_current()
        # Taken before rendering: the content may be newer, in which case the page is rendered once too often, but a
        # change is never missed.
        position = min(board.position, self._context.entry_broadcast.position)
        content = await page.render()
        page.position = position
        if content != page.content:
            page.content = content
            page.wake()
        return (uptime_s() - now_s) * _REST

    async def _find_due_pages(self, now_s: float) -> bool:
        """Find the pages that are due; return True if any page (due or not yet) or the board is out of date."""
        await self._boards.get_current()
        entries = self._context.entry_broadcast
        await entries.read_new_entries(self._context.changed)
        if self._revocations != entries.revocation_count:
            self._revocations = entries.revocation_count
            for page in self._pages.values():
                page.wake()  # streams check whether their token is among the revoked ones
        outdated = [page for page in self._pages.values() if self._is_outdated(page, now_s)]
        self._due = [page for page in outdated if page.rendered_s is None or now_s - page.rendered_s >= _LEAST_S]
        # Forget the turns of viewers that have left, so that the table does not grow.
        viewers = {page.viewer for page in self._pages.values()}
        self._turns = {viewer: turn for viewer, turn in self._turns.items() if viewer in viewers}
        self._searched_s = now_s
        return bool(outdated) or not self._boards.is_current

    def _is_outdated(self, page: LivePage, now_s: float) -> bool:
        if page.rendered_s is None or now_s - page.rendered_s >= _REFRESH_S:
            return True
        entries = self._context.entry_broadcast
        news = entries.entries_after(page.position)
        return news is None or any(each.is_visible_to(page.caller, EVERYTHING, entries.find_vm) for each in news)

    async def _wait_for_work(self, changed: asyncio.Event) -> None:
        """Wait for a change, a new watcher or a timeout; pages also become outdated by age."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (changed, self._watcher_joined)]
        try:
            await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()


def _encode_event(content: bytes) -> bytes:
    return b"".join(b"data: " + line + b"\n" for line in content.splitlines()) + b"\n"
