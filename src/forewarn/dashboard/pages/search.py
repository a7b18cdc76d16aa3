"""Search page: VMs, hosts, scopes and maintenances by part of their name."""

from __future__ import annotations

from forewarn.dashboard.name_index import index_names
from forewarn.dashboard.page import PageModel, PageView
from forewarn.dashboard.pages.overview import matches_text
from forewarn.store.contract import Reader

__all__ = ["make_search_page"]

_MOST = 25


def make_search_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of search results, with at most `_MOST` of each kind."""
    wanted = view.query_params.get("q", "").strip().lower()
    found: dict[str, list[str]] = {}
    items = []
    if wanted:
        found = _find_names(reader, view, wanted)
        items = [item for item in view.visible_board.all_items if matches_text(item, wanted)][:_MOST]
    values = {"q": view.query_params.get("q", ""), "found": found, "items": items, "most": _MOST}
    return PageModel(template="search.html", title="Search", values=values, is_live=False)


def _find_names(reader: Reader, view: PageView, wanted: str) -> dict[str, list[str]]:
    owned = view.caller.ownership
    # The directory holds the names of everyone. A tenant's own names are few, so they are read and indexed each time.
    if owned is None:
        return view.name_index.find_containing(wanted, _MOST)
    names = index_names(reader.list_vms(owned=owned))
    return {kind: names[kind].find_containing(wanted, _MOST) for kind in ("vms", "scopes")}
