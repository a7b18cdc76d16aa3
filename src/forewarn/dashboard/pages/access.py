"""Access page: recent refusals, and the callers with their use and the limits they met."""

from __future__ import annotations

from collections.abc import Mapping

from forewarn.control.context import Context
from forewarn.control.limit import list_account_use
from forewarn.core.model import EntryKind
from forewarn.core.selection import Selection
from forewarn.dashboard.list_filter import read_offset
from forewarn.dashboard.page import PageModel, PageView
from forewarn.store.contract import Reader
from forewarn.wire.access import AccountOut

__all__ = ["collect_use", "make_access_page"]

_REFUSALS = 30
_ROWS = 100


def collect_use(context: Context, _query_params: Mapping[str, str]) -> list[AccountOut]:
    """Collect the callers of this replica, those that met a limit most recently first."""
    return list_account_use(context)


def make_access_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of recent refusals and of callers."""
    accounts: list[AccountOut] = view.collected
    begin = read_offset(view.query_params)
    selection = Selection(kinds=(EntryKind.REFUSED,))
    refused = reader.list_entries(limit=_REFUSALS, newest=True, selection=selection, owned=view.caller.ownership)
    values = {
        "refused": refused.items[::-1],
        # A search ends after a number of entries, also if it has found nothing.
        "is_searched": refused.next is None,
        "rows": accounts[begin : begin + _ROWS],
        "count": len(accounts),
        "from_": begin,
        "next_from": begin + _ROWS if begin + _ROWS < len(accounts) else None,
    }
    return PageModel(template="access.html", title="Access", values=values)
