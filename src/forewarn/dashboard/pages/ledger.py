"""The ledger: what happened, who did it, and why."""

from __future__ import annotations

from forewarn.dashboard.page import Look, Page
from forewarn.store.contract import Reader

__all__ = ["ledger"]

_ROWS = 100


def ledger(reader: Reader, look: Look) -> Page:
    """The newest entries, or those after a sequence."""
    text = look.params.get("after", "")
    after = int(text) if text.isdecimal() and len(text) < 19 else None  # noqa: PLR2004 - what an integer of a database holds
    wanted = look.params.get("maintenance", "").strip() or None
    is_newest = after is None
    page = reader.entries(after=after or 0, limit=_ROWS, maintenance_id=wanted, newest=is_newest)
    values = {"entries": page.items[::-1], "next": page.next, "maintenance": wanted or "", "is_newest": is_newest}
    return Page(template="ledger.html", title="Ledger", values=values, is_live=is_newest)
