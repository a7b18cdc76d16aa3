"""Audit log page: search past actions by time, object, actor or text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from forewarn.core.access import Principal
from forewarn.core.model import EntryKind
from forewarn.core.selection import Selection
from forewarn.dashboard.page import Look, Page
from forewarn.errors import InvalidRequest
from forewarn.store.contract import Reader
from forewarn.util.duration import parse_span

__all__ = ["FIELDS", "audit_log", "read_selection"]

FIELDS = ("since", "until", "vm", "scope", "host", "kind", "actor", "text", "maintenance")
"""Search fields, as named in the query."""

_ROWS = 100
_LENGTH_MAX = 256
_NUMBER_LENGTH_MAX = 18
"""Maximum number of digits: such an integer fits every database."""


def audit_log(reader: Reader, look: Look) -> Page:
    """Make the page of audit log entries that match the search, newest first."""
    given = {name: look.params.get(name, "").strip() for name in FIELDS}
    wrong, selection = "", Selection()
    try:
        selection = read_selection(given, look.now)
        check_selection(given, look.caller)
    except InvalidRequest as error:
        wrong = error.message
    before = _number(look.params.get("before", ""))
    page = (
        None
        if wrong
        else reader.entries(limit=_ROWS, newest=True, before=before, selection=selection, owned=look.caller.owned)
    )
    values = {
        "entries": [] if page is None else [look.caller.shown_entry(entry) for entry in page.items[::-1]],
        "fields": [name for name in FIELDS if look.has_hosts or name not in HIDDEN],
        "next": None if page is None else page.next,
        "is_first": before is None,
        "given": given,
        "asked": {name: value for name, value in given.items() if value},
        "kinds": [kind.value for kind in EntryKind],
        "wrong": wrong,
    }
    return Page(template="audit_log.html", title="Audit log", values=values, is_live=before is None and not wrong)


HIDDEN = ("host", "actor", "text")
"""Fields that tenants may not search by: matches would reveal values that they are not shown."""


def check_selection(given: Mapping[str, str], caller: Principal) -> None:
    """Check that a tenant uses no hidden search field.

    Raises:
        InvalidRequest: The tenant searches by one of `HIDDEN`.
    """
    asked = [name for name in HIDDEN if given[name]]
    if asked and caller.owned is not None:
        msg = f"{caller.actor} cannot search by {', '.join(asked)}"
        raise InvalidRequest(msg)


def read_selection(given: Mapping[str, str], now: datetime) -> Selection:
    """Return the selection that the search fields describe; empty fields do not restrict it.

    Raises:
        InvalidRequest: A field cannot be read.
    """
    for name, value in given.items():
        if len(value) > _LENGTH_MAX or "\x00" in value:
            msg = f"{name} is longer than {_LENGTH_MAX} characters, or holds what is no text"
            raise InvalidRequest(msg)
    if given["kind"] and given["kind"] not in set(EntryKind):
        msg = f"kind {given['kind']!r} is none of the audit log's"
        raise InvalidRequest(msg)
    return Selection(
        since=_moment("since", given["since"], now),
        until=_moment("until", given["until"], now),
        vm=given["vm"] or None,
        scope=given["scope"] or None,
        host=given["host"] or None,
        kinds=(EntryKind(given["kind"]),) if given["kind"] else (),
        actor=given["actor"] or None,
        text=given["text"] or None,
        maintenance_id=given["maintenance"] or None,
    )


def _moment(name: str, text: str, now: datetime) -> datetime | None:
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
        return now - parse_span(text)
    except ValueError:
        msg = f"{name}: {text!r} is expected to be a span like 30d, a day like 2030-01-31, or a moment in RFC 3339"
        raise InvalidRequest(msg) from None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _NUMBER_LENGTH_MAX else None
