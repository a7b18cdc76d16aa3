"""What a page is: a function from who looks, at what, to a template and its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forewarn.control.context import Context
from forewarn.core.access import Principal
from forewarn.dashboard.board import Board
from forewarn.dashboard.names import Directory
from forewarn.store.contract import Reader

__all__ = ["Look", "Make", "Page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Somebody looks at a page.

    Attributes:
        context: The service.
        board: What is under way.
        seen: What of it the caller may see.
        directory: The names of what is declared.
        caller: Who looks.
        path: What the address says, by the names in the route.
        params: What the query says.
        address: Path and query, as the browser has them.
    """

    context: Context
    board: Board
    seen: Board
    directory: Directory
    caller: Principal
    path: Mapping[str, str]
    params: Mapping[str, str]
    address: str

    @property
    def has_hosts(self) -> bool:
        """Whether hosts are shown; to a tenant they are not."""
        return self.caller.owned is None

    @property
    def now(self) -> datetime:
        """The time of the service."""
        return self.context.clock.now()

    def asked_at(self, audience: str) -> datetime | None:
        """When that audience last asked, as far as known."""
        return self.context.engine.feed.asked_at(audience)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What to show.

    Attributes:
        template: Name of its file.
        title: For the window.
        values: For the template.
        is_live: Whether it follows what happens.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_live: bool = True


Make = Callable[[Reader, Look], Page]
"""Makes a page, on the reader's thread, from one view of the store."""
