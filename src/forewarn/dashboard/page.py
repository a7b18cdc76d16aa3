"""Types of a page: a function from a page view to a template and its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forewarn.control.board import Board
from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard.name_index import InventoryNameIndex
from forewarn.store.contract import Reader

__all__ = ["Collect", "Make", "PageModel", "PageView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """One view of a page by a caller.

    Attributes:
        visible_board: Part of the current board that the caller may see.
        name_index: Names of all declared VMs, hosts and scopes.
        path_params: Path parameters, by their names in the route.
        address: Path and query, as the browser has them.
        collected: Values from the event loop, for pages that show more than the store has; else None.
    """

    context: Context
    board: Board
    visible_board: Board
    name_index: InventoryNameIndex
    caller: Principal
    path_params: Mapping[str, str]
    query_params: Mapping[str, str]
    address: str
    collected: Any = None

    @property
    def has_hosts(self) -> bool:
        """True if hosts are shown; tenants do not see them."""
        return self.caller.ownership is None

    @property
    def now(self) -> datetime:
        """Current time of the service."""
        return self.context.clock.now()

    def asked_at(self, audience: str) -> datetime | None:
        """Return the time of an audience's last request; None if unknown."""
        return self.context.engine.feed.last_polled_at(audience)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModel:
    """A template file with its values; a live page is updated as things change."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_live: bool = True


Make = Callable[[Reader, PageView], PageModel]
"""Function that makes a page on the reader's thread, from one view of the store."""

Collect = Callable[[Context, Mapping[str, str]], Any]
"""Function that collects values on the event loop, which alone may look at what changes there; by the page's query."""
