"""Data of the timeline: rows by host or by scope, with bars for notice and impact."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from forewarn.control.board import BoardItem
from forewarn.core.model import MaintenanceState
from forewarn.dashboard import wording
from forewarn.dashboard.render import format_time, format_timestamp

__all__ = ["BY", "ROWS_MAX", "make_timeline"]

BY = ("scope", "host")
"""Kinds of rows."""

ROWS_MAX = 60
"""Maximum number of rows; more are unreadable, and slow for a browser to draw."""

_SHORTEST = timedelta(seconds=5)


def make_timeline(items: Iterable[BoardItem], by: str, now: datetime, *, frozen: bool) -> dict[str, Any]:
    """Return the rows and bars of a timeline.

    Args:
        items: Maintenances to draw; those that would exceed `ROWS_MAX` are left out and counted.
        by: Kind of the rows, one of `BY`.
        now: Current time.
        frozen: True if the clock is virtual, so that time does not pass until it is advanced.
    """
    rows: dict[str, None] = {}
    bars: list[dict[str, Any]] = []
    left_out = 0
    for item in items:
        names = list(_list_rows(item, by))
        if len(rows | dict.fromkeys(names)) > ROWS_MAX:
            left_out += 1
            continue
        rows |= dict.fromkeys(names)
        for row in names:
            bars += _make_bars(item, row, now)
    return {
        "rows": [{"id": name, "content": name} for name in sorted(rows)],
        "bars": bars,
        "now": format_timestamp(now),
        "frozen": frozen,
        "leftOut": left_out,
    }


def _format_next_step(item: BoardItem) -> str:
    text, at, _ = wording.describe_next_step(item)
    return text if at is None else f"{text} {format_time(at)}"


def _list_rows(item: BoardItem, by: str) -> dict[str, None]:
    claims = item.maintenance.claims
    if by == "host":
        return dict.fromkeys(claim.host for claim in claims)
    return dict.fromkeys(claim.scope or claim.vm for claim in claims)


def _make_bars(item: BoardItem, row: str, now: datetime) -> list[dict[str, Any]]:
    m = item.maintenance
    shared = {
        "group": row,
        "subgroup": m.id,
        "href": f"/maintenance/{m.id}",
        "tip": f"{wording.make_title(m)} ({m.state}). {_format_next_step(item)}.",
    }
    spans = []
    if m.not_before is not None:
        until = m.started_at or (m.ended_at if m.state is MaintenanceState.CANCELED else None) or m.not_before
        spans.append(("notice", m.created_at, until, f"{m.type}"))
    if m.started_at is not None:
        end = m.ended_at or max(now, item.forecast.at or now)
        spans.append(("impact", m.started_at, end, f"{wording.STATES[m.state]} {m.type}"))
    return [
        shared
        | {
            "id": f"{m.id}/{row}/{kind[0]}",
            "start": format_timestamp(start),
            # A bar without length would be invisible.
            "end": format_timestamp(max(end, start + _SHORTEST)),
            "className": f"{kind} {m.state}",
            "content": content,
            "type": "range",
        }
        for kind, start, end, content in spans
    ]
