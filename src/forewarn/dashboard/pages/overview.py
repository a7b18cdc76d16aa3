"""Overview page: upcoming and current maintenances, and those that need attention."""

from __future__ import annotations

from forewarn.control.attention import read_attention
from forewarn.control.board import BoardItem
from forewarn.core.model import MaintenanceState
from forewarn.dashboard.page import PageModel, PageView
from forewarn.dashboard.timeline import BY, make_timeline
from forewarn.store.contract import Reader

__all__ = ["make_overview_page", "matches_text"]

_TROUBLED_MAX = 12
_ROWS = 50


def make_overview_page(reader: Reader, view: PageView) -> PageModel:
    """Make the overview: active maintenances, those that need attention, and recently ended ones."""
    board, params = view.visible_board, view.query_params
    wanted = params.get("q", "").strip().lower()
    state = params.get("state", "")
    by = params.get("by", BY[0])
    by = by if by in BY and view.has_hosts else BY[0]
    found = [item for item in board.items if _matches_state(item, state) and matches_text(item, wanted)]
    ended = [item for item in board.ended if matches_text(item, wanted)]
    begin = int(params["from"]) if params.get("from", "").isdecimal() else 0
    rows = found[begin : begin + _ROWS]
    attention = read_attention(reader, board, has_hosts=view.has_hosts)
    shown = rows + [item for item in ended if not state][:_TROUBLED_MAX]
    values = {
        "board": board,
        "troubled": attention.items[:_TROUBLED_MAX],
        "troubled_count": attention.count,
        "failed_hosts": attention.failed_hosts[:_TROUBLED_MAX],
        "failed_more": max(len(attention.failed_hosts) - _TROUBLED_MAX, 0),
        "counts": {each: sum(item.maintenance.state is each for item in board.items) for each in _ACTIVE},
        "rows": rows,
        "found_count": len(found),
        "from_": begin,
        "next_from": begin + _ROWS if begin + _ROWS < len(found) else None,
        "before_from": max(begin - _ROWS, 0) if begin else None,
        "ended": ended[:10],
        "by": by,
        "q": params.get("q", ""),
        "state": state,
        "timeline": make_timeline(shown, by, view.now, frozen=view.context.clock.is_virtual),
    }
    return PageModel(template="overview.html", title="Overview", values=values)


_ACTIVE = (MaintenanceState.STARTED, MaintenanceState.SCHEDULED, MaintenanceState.QUEUED)


def _matches_state(item: BoardItem, state: str) -> bool:
    return not state or item.maintenance.state == state or (state == "attention" and item.worst_problem is not None)


def matches_text(item: BoardItem, wanted: str) -> bool:
    """Return True if a name of the maintenance contains the text, which must be in lower case; an empty one matches."""
    if not wanted:
        return True
    m = item.maintenance
    names = [m.id, m.type, m.cause, *m.hosts]
    for claim in m.claims:
        names += [claim.vm, claim.host, claim.scope or ""]
    return any(wanted in name.lower() for name in names)
