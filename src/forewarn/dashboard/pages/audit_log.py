"""Audit log page: search past actions by time, object, actor or text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from forewarn.core.access import Principal
from forewarn.core.model import EntryKind
from forewarn.core.selection import Selection
from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import InvalidRequest
from forewarn.store.contract import Reader
from forewarn.util.duration import parse_duration

__all__ = ["FIELDS", "make_audit_log_page", "read_selection"]

FIELDS = ("since", "until", "vm", "scope", "host", "kind", "actor", "text", "maintenance")
"""Search fields, as named in the query."""

_ROWS = 100
_LENGTH_MAX = 256
_NUMBER_LENGTH_MAX = 18
"""Maximum number of digits: such an integer fits every database."""


def make_audit_log_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of audit log entries that match the search, newest first."""
    given = {name: view.query_params.get(name, "").strip() for name in FIELDS}
    wrong, selection = "", Selection()
    try:
        selection = read_selection(given, view.now)
        check_selection(given, view.caller)
    except InvalidRequest as error:
        wrong = error.message
    before = _parse_sequence(view.query_params.get("before", ""))
    owned = view.caller.ownership
    page = None
    if not wrong:
        page = reader.list_entries(limit=_ROWS, newest=True, before=before, selection=selection, owned=owned)
    values = {
        "entries": [] if page is None else [view.caller.redact_entry(entry) for entry in page.items[::-1]],
        "fields": [name for name in FIELDS if view.has_hosts or name not in HIDDEN],
        "next": None if page is None else page.next,
        "is_first": before is None,
        "given": given,
        "asked": {name: value for name, value in given.items() if value},
        "kinds": [kind.value for kind in EntryKind],
        "wrong": wrong,
    }
    # Older pages do not change, so only the first one is live.
    return PageModel(template="audit_log.html", title="Audit log", values=values, is_live=before is None and not wrong)


HIDDEN = ("host", "actor", "text")
"""Fields that tenants may not search by: matches would reveal values that they are not shown."""


def check_selection(given: Mapping[str, str], caller: Principal) -> None:
    """Check that a tenant uses no hidden search field.

    Raises:
        InvalidRequest: The tenant searches by one of `HIDDEN`.
    """
    asked = [name for name in HIDDEN if given[name]]
    if asked and caller.ownership is not None:
        raise InvalidRequest(f"{caller.actor} cannot search by {', '.join(asked)}")


def read_selection(given: Mapping[str, str], now: datetime) -> Selection:
    """Return the selection that the search fields describe; empty fields do not restrict it.

    Raises:
        InvalidRequest: A field cannot be read.
    """
    for name, value in given.items():
        if len(value) > _LENGTH_MAX or "\x00" in value:
            raise InvalidRequest(f"{name} is longer than {_LENGTH_MAX} characters or contains a NUL character")
    if given["kind"] and given["kind"] not in set(EntryKind):
        raise InvalidRequest(f"kind {given['kind']!r} is not a kind of audit log entry")
    return Selection(
        since=_parse_time("since", given["since"], now),
        until=_parse_time("until", given["until"], now),
        vm=given["vm"] or None,
        scope=given["scope"] or None,
        host=given["host"] or None,
        kinds=(EntryKind(given["kind"]),) if given["kind"] else (),
        actor=given["actor"] or None,
        text=given["text"] or None,
        maintenance_id=given["maintenance"] or None,
    )


def _parse_time(name: str, text: str, now: datetime) -> datetime | None:
    """Parse a time in RFC 3339, a day in UTC, or a duration before now; None if empty."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    try:
        return now - parse_duration(text)
    except ValueError:
        msg = f"{name}: {text!r} is expected to be a duration like 30d, a day like 2030-01-31, or a time in RFC 3339"
        raise InvalidRequest(msg) from None


def _parse_sequence(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _NUMBER_LENGTH_MAX else None
