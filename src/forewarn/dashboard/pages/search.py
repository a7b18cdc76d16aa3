"""Search page: VMs, hosts, scopes and maintenances by part of their name."""

from __future__ import annotations

from forewarn.dashboard.names import names_of
from forewarn.dashboard.page import Look, Page
from forewarn.dashboard.pages.overview import matches
from forewarn.store.contract import Reader

__all__ = ["search"]

_MOST = 25


def search(reader: Reader, look: Look) -> Page:
    """Make the page of search results, with at most `_MOST` of each kind."""
    wanted = look.params.get("q", "").strip().lower()
    found: dict[str, list[str]] = {}
    items = []
    if wanted:
        found = _names(reader, look, wanted)
        items = [item for item in (*look.seen.items, *look.seen.ended) if matches(item, wanted)][:_MOST]
    values = {"q": look.params.get("q", ""), "found": found, "items": items, "most": _MOST}
    return Page(template="search.html", title="Search", values=values, is_live=False)


def _names(reader: Reader, look: Look, wanted: str) -> dict[str, list[str]]:
    owned = look.caller.owned
    if owned is None:
        return look.directory.containing(wanted, _MOST)
    names = names_of(reader.vms(owned=owned))
    return {kind: names[kind].containing(wanted, _MOST) for kind in ("vms", "scopes")}
